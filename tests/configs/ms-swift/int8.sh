swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora --quant_method bnb --quant_bits 8 --max_length 2048 \
    --torch_dtype float16 --modules_to_save all-embedding lm_head
