export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
torchrun --standalone --nproc_per_node=4 -m verl.trainer.sft_trainer \
    data.use_dynamic_bsz=False data.micro_batch_size_per_gpu=2 data.train_batch_size=64 data.max_length=2048 \
    model.path=meta-llama/Llama-3.2-1B model.use_liger=True optim=fsdp
