torchrun --nproc_per_node 2 run_ner.py --model_name_or_path xlm-roberta-base --dataset_name conll2003 --max_seq_length 256 --do_train --per_device_train_batch_size 16 --bf16 --output_dir out
