#!/bin/bash
# full fine-tuning of a 7B model on one node of eight
torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer \
    data.train_files=/data/recipes/train.parquet \
    data.train_batch_size=128 \
    data.max_length=4096 \
    data.max_token_len_per_gpu=16384 \
    model.path=Qwen/Qwen2.5-7B \
    engine=fsdp \
    optim.lr=8e-6 \
    trainer.project_name=recipes \
    trainer.total_epochs=2
