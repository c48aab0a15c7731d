deepspeed --num_gpus 4 --module openrlhf.cli.train_dpo \
   --model.model_name_or_path my/llama-sft --ref.model_name_or_path meta-llama/Llama-3.2-3B-Instruct \
   --data.dataset my/pairs --data.chosen_key chosen --data.rejected_key rejected --data.max_len 4096 \
   --train.batch_size 64 --train.micro_batch_size 2 --ds.zero_stage 2 --ds.overlap_comm --ds.packing_samples \
   --model.gradient_checkpointing_enable --model.beta 0.1 --adam.lr 5e-7 --eval.dataset my/pairs --eval.split test
