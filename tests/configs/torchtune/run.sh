tune run lora_finetune_single_device --config lora.yaml batch_size=4 model.lora_rank=64 ~dataset.packed \
  tokenizer.max_seq_len=8192 compile=True
