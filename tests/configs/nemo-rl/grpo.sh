python examples/run_grpo_math.py --config reasoning.yaml policy.sequence_packing.train_mb_tokens=8192
