python3 -m openrlhf.cli.train_ppo_ray \
   --pretrain Qwen/Qwen2.5-7B-Instruct --remote_rm_url ./reward.py \
   --actor_num_nodes 1 --actor_num_gpus_per_node 8 --colocate_all_models \
   --vllm_num_engines 8 --vllm_tensor_parallel_size 1 --vllm_gpu_memory_utilization 0.5 --vllm_enable_sleep \
   --advantage_estimator group_norm --n_samples_per_prompt 8 --micro_train_batch_size 4 --train_batch_size 256 \
   --rollout_batch_size 128 --prompt_max_len 1024 --generate_max_len 2048 --zero_stage 3 --bf16 \
   --gradient_checkpointing --packing_samples
