uv run examples/run_sft.py --config sft.yaml policy.sequence_packing.enabled=false policy.dynamic_batching.enabled=true \
  policy.dynamic_batching.train_mb_tokens=8192 policy.dtensor_cfg.lora_cfg.enabled=true cluster.gpus_per_node=1
