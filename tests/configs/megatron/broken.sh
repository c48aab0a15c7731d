megatron pt --model Qwen/Qwen2.5-7B --tensor_model_parallel_size two
