python run_glue.py --model_name_or_path bert-base-uncased --task_name mnli --do_train --do_eval --per_device_train_batch_size 32 --fp16 --output_dir out
