swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora --quant_method bnb --quant_bits 4 --max_length 2048
