torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 256 --bf16 --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer --recompute-activations
