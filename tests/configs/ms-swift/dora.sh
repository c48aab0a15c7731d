NPROC_PER_NODE=2 swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type lora --use_dora true --quant_bits 8 \
    --quant_method bnb --max_length 2048 --torch_dtype bfloat16
