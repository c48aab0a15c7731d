RANK=64
torchrun --nproc_per_node=2 -m verl.trainer.sft_trainer \
    model.path=Qwen/Qwen2.5-14B model.lora_rank=$RANK "model.target_modules=[q_proj,k_proj,v_proj,o_proj]" \
    engine.model_dtype=bf16 data.max_token_len_per_gpu=8192
