CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 INFONCE_MASK_FAKE_NEGATIVE=true \
swift sft \
    --model Qwen/Qwen3-Embedding-0.6B \
    --task_type embedding \
    --loss_type infonce \
    --tuner_type lora \
    --target_modules all-linear \
    --torch_dtype bfloat16 \
    --dataset ./questions.jsonl \
    --max_length 1024 \
    --per_device_train_batch_size 8 \
    --gradient_accumulation_steps 2 \
    --learning_rate 6e-6 \
    --deepspeed zero2 \
    --output_dir out
