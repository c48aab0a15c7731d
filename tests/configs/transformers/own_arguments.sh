python run_mine.py --model_name_or_path Qwen/Qwen2.5-0.5B --bf16 --dataset_name trl-lib/Capybara --use_lora \
  --my_own_switch 3 --per_device_train_batchsize 4 --block_size 512 --dtype bfloat16
