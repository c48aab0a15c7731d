tune run --nproc_per_node 4 lora_dpo_distributed --config dpo.yaml batch_size=2
