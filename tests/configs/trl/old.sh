python trl/scripts/sft.py --model_name_or_path Qwen/Qwen2-0.5B --max_seq_length 512 --torch_dtype bfloat16 --bf16 \
  --use_peft --lora_r 16 --per_device_train_batch_size 4
