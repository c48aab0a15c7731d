trl reward --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --dataset_name trl-lib/ultrafeedback_binarized --dtype bfloat16 \
    --max_length 2048 --per_device_train_batch_size 4 --eval_strategy steps --use_peft --lora_task_type SEQ_CLS --bf16 false --fp16
