torchrun --nproc_per_node=2 run_clm.py --model_name_or_path Qwen/Qwen2.5-0.5B --do_train --block_size 1024 --bf16 \
  --per_device_train_batch_size 4 --gradient_accumulation_steps=2 --output_dir out --torch_dtype bfloat16
