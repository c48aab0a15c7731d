swift sft --sft_type lora --model_id_or_path qwen/Qwen2-7B-Instruct --batch_size 1 --lora_target_modules ALL --dtype bf16
