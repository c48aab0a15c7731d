trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --dataset_name trl-lib/tldr --reward_model_name_or_path Skywork/Reward-Qwen
