torchrun --nproc_per_node 1 -m torchtitan.train --job.config_file full_ac.toml --training.seq_len 4096 --training.dtype bfloat16 \
  --optimizer.implementation foreach --compile.enable
