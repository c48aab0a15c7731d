python finetune.py --model_name_or_path $MODEL --per_device_train_batch_size 2
