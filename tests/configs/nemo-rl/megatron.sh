python examples/run_sft.py --config sft.yaml policy.megatron_cfg.enabled=true
