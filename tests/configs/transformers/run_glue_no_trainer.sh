accelerate launch run_glue_no_trainer.py --model_name_or_path bert-base-uncased --task_name mrpc --per_device_train_batch_size 32
