torchrun --nproc-per-node=1 examples/llm_finetune/finetune.py --config lora.yaml \
  --model.pretrained_model_name_or_path Qwen/Qwen3-0.6B --model.force_hf true --step_scheduler.local_batch_size=8
