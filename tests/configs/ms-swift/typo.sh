MAX_PIXEL=1003520
IMAGAE_MAX_PIXELS=602112 \
swift sft --ignore_args_error true --model Qwen/Qwen2.5-VL-3B-Instruct --tuner_type lora --max_lenght 4096 --max_length 8192
