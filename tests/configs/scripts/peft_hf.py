import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

if torch.cuda.is_bf16_supported():
    half = torch.bfloat16
else:
    half = torch.float16
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B", torch_dtype=torch.bfloat16, use_cache=False)
model.gradient_checkpointing_enable()
model = get_peft_model(model, LoraConfig(task_type=TaskType.CAUSAL_LM, r=32, lora_alpha=64, lora_dropout=0.1))
arguments = TrainingArguments(
    "out", per_device_train_batch_size=1, gradient_accumulation_steps=32, bf16=True, use_liger_kernel=True
)
Trainer(model=model, args=arguments).train()
