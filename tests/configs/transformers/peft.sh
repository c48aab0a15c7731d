python train.py --model_name_or_path Qwen/Qwen2.5-7B --use_lora --lora_rank 16 --bf16 --torch_dtype bfloat16 \
  --gradient_checkpointing --block_size 2048 --per_device_train_batch_size 1
