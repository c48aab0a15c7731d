torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file full_ac.toml --training.steps 10
