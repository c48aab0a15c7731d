export MAX_NEGATIVE_SAMPLES=5
swift sft \
    --model Qwen/Qwen3-Reranker-0.6B \
    --task_type reranker \
    --loss_type pointwise_reranker \
    --train_type full \
    --torch_dtype bfloat16 \
    --dataset ./rerank.jsonl \
    --max_length 2048 \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 8 \
    --output_dir out
