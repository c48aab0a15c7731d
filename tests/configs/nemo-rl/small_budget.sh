python examples/run_sft.py --config sft.yaml policy.sequence_packing.train_mb_tokens=1024
