NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-14B --tuner_type full --torch_dtype bfloat16 --deepspeed zero0 \
  --max_length 4096 --use_liger_kernel true
