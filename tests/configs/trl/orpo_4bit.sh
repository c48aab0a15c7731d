python examples/scripts/orpo.py --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --dataset_name a/b --use_peft --load_in_4bit
