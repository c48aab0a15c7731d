torchrun --nproc_per_node 2 -m openrlhf.cli.train_sft \
   --pretrain Qwen/Qwen2.5-7B --dataset my/chats --input_key messages --apply_chat_template \
   --max_len 8192 --packing_samples --train_batch_size 64 --micro_train_batch_size 1 --zero_stage 2 --bf16 --flash_attn \
   --lora_rank 32 --lora_alpha 64 --target_modules q_proj k_proj v_proj o_proj --load_in_4bit --gradient_checkpointing \
   --learning_rate 1e-4 --max_epochs 2 --save_path out/sft
