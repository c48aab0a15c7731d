torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer model.path=Qwen/Qwen2.5-7B engine.strategy=fsdp2 \
    data.max_token_len_per_gpu=16384
