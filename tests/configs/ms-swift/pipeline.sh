# two cards, and nobody said how many processes
CUDA_VISIBLE_DEVICES=0,1 swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora --max_length 2048
