CUDA_VISIBLE_DEVICES=0 llamafactory-cli train \
    --stage sft --finetuning_type lora --lora_target q_proj,v_proj \
    --model_name_or_path meta-llama/Llama-3.1-8B-Instruct \
    --cutoff_len 1024 --packing true --bf16 --per_device_train_batch_size 4 --disable_gradient_checkpointing true
