tune run lora_dpo_single_device --config dpo.yaml batch_size=2
