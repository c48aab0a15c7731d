deepspeed --num_gpus 8 --module openrlhf.cli.train_sft \
   --data.max_len 2048 \
   --data.dataset Open-Orca/OpenOrca --data.input_key question --data.output_key response \
   --train.batch_size 256 --train.micro_batch_size 4 \
   --model.model_name_or_path meta-llama/Llama-3.1-8B \
   --ds.zero_stage 2 --ds.param_dtype bf16 --ds.attn_implementation flash_attention_2 \
   --model.gradient_checkpointing_enable \
   --ckpt.output_dir ./checkpoint/llama3-sft
