# one image of at most 1280 tokens
export MAX_PIXELS=1003520
export NPROC_PER_NODE=2
swift sft --model Qwen/Qwen2.5-VL-7B-Instruct --train_type lora --freeze_vit false --max_length 4096 \
  --per_device_train_batch_size 2 --use_liger_kernel true
