python examples/scripts/orpo.py --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --dataset_name trl-lib/ultrafeedback_binarized \
    --beta 0.1 --max_length 768 --per_device_train_batch_size 2 --use_peft --lora_r 16 --output_dir out
