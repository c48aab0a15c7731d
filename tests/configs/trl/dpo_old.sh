trl dpo --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --dataset_name trl-lib/ultrafeedback_binarized \
    --torch_dtype bfloat16 --load_in_4bit --use_peft --lora_target_modules all-linear \
    --max_prompt_length 256 --max_completion_length 256 --max_length 1024 --per_device_train_batch_size 4 --output_dir out
