python3 -m verl.trainer.sft_trainer_ray model.path=Qwen/Qwen2.5-1.5B trainer.nnodes=1 trainer.n_gpus_per_node=4 \
    ++data.train_batch_size=32 data.max_token_len_per_gpu=65536
