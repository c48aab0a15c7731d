python run_swag.py --model_name_or_path FacebookAI/roberta-base --do_train --per_device_train_batch_size 16 --output_dir out
