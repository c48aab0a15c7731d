trl sft --model_name_or_path Qwen/Qwen2.5-7B --use_peft --load_in_4bit --torch_dtype bfloat16 --bf16 \
  --max_seq_length 1024 --gradient_checkpointing --lora_modules_to_save embed_tokens lm_head
