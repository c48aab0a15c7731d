accelerate launch --num_processes 8 trl/scripts/sft.py --model_name_or_path Qwen/Qwen2.5-7B --use_peft --dtype bfloat16 \
  --max_length 4096 --per_device_train_batch_size 1
