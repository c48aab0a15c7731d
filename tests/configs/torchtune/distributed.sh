tune run --nproc_per_node 4 lora_finetune_distributed --config lora.yaml
