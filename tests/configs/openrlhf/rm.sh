deepspeed --num_gpus 4 --module openrlhf.cli.train_rm \
   --pretrain Qwen/Qwen2.5-7B-Instruct --train_batch_size 64 --micro_train_batch_size 2 --max_len 2048 \
   --zero_stage 2 --lora_rank 64 --load_in_4bit --adam_offload --bf16 --dataset my/preferences
