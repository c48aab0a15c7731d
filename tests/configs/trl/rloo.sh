trl rloo --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --dataset_name trl-lib/tldr
