NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0,1,2,3 megatron sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora \
  --micro_batch_size 4 --global_batch_size 16 --recompute_granularity full --recompute_method uniform \
  --recompute_num_layers 1 --max_length 2048 --tensor_model_parallel_size 1
