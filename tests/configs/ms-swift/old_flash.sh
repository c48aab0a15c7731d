swift sft --model_type qwen2-7b-instruct --model_id_or_path Qwen/Qwen2-7B-Instruct --sft_type lora --dtype bf16 \
  --use_flash_attn true --batch_size 2 --gradient_accumulation_steps 8 --max_length 4096
