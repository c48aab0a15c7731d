accelerate launch --num_processes 2 trl/scripts/grpo.py --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --dataset_name trl-lib/tldr \
    --dtype bfloat16 --per_device_train_batch_size 4 --generation_batch_size 32 --num_iterations 2 --beta 0.02 \
    --use_vllm --vllm_mode server --vllm_importance_sampling_correction false --eval_strategy steps --per_device_eval_batch_size 16
