# one process that sees two cards, and DeepSpeed
CUDA_VISIBLE_DEVICES=0,1 swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type full --deepspeed zero2 --max_length 2048
