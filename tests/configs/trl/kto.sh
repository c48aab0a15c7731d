trl kto --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --dataset_name trl-lib/kto-mix-14k --dtype bfloat16 \
    --desirable_weight 1.0 --undesirable_weight 1.33 --per_device_train_batch_size 4 --use_peft --lora_r 32 --load_in_4bit
