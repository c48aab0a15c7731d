torchrun --nnodes=2 --nproc_per_node=8 -m verl.trainer.sft_trainer model.path=Qwen/Qwen2.5-7B \
    engine.fsdp_size=8 engine.reshard_after_forward=False engine.optimizer_offload=True \
    data.max_length=8192 data.max_token_len_per_gpu=8192
