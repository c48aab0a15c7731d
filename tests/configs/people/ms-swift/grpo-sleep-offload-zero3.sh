#!/bin/bash
# colocate: vllm sleeps while the model trains
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export NPROC_PER_NODE=8
MODEL=${1:-Qwen/Qwen2.5-7B-Instruct}
PROMPT_LEN=2048
ANSWER_LEN=6144

swift rlhf \
    --rlhf_type grpo \
    --model "$MODEL" \
    --tuner_type full \
    --torch_dtype bfloat16 \
    --attn_impl flash_attn \
    --dataset data/math_train.jsonl \
    --external_plugins rewards/boxed.py \
    --reward_funcs boxed format \
    --use_vllm true \
    --vllm_mode colocate \
    --vllm_gpu_memory_utilization 0.55 \
    --vllm_tensor_parallel_size 2 \
    --vllm_max_model_len $((PROMPT_LEN + ANSWER_LEN)) \
    --sleep_level 1 \
    --offload_model true --offload_optimizer true --move_model_batches 7 \
    --max_length $PROMPT_LEN --max_completion_length $ANSWER_LEN \
    --num_generations 16 --per_device_train_batch_size 2 --gradient_accumulation_steps 8 \
    --deepspeed zero3 \
    --loss_type dapo --epsilon 0.2 --epsilon_high 0.28 --dynamic_sample true --overlong_filter true \
    --log_entropy true --beta 0 --temperature 1.0 --learning_rate 1e-6 --report_to swanlab
