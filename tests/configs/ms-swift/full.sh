#!/usr/bin/env bash
nproc_per_node=4
export OMP_NUM_THREADS=8
CUDA_VISIBLE_DEVICES=0,1,2,3 \
NPROC_PER_NODE=$nproc_per_node \
swift sft \
    --model Qwen/Qwen2.5-1.5B \
    --tuner_type full \
    --torch_dtype bfloat16 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps $(expr 32 / $nproc_per_node) \
    --attn_impl flash_attn \
    --max_length 4096 2>&1 | tee log.txt
