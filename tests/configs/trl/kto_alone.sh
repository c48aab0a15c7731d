trl kto --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --dataset_name trl-lib/kto-mix-14k --per_device_train_batch_size 1
