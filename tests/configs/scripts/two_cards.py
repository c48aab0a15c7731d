import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-14B-Instruct", dtype=torch.bfloat16, device_map="auto")
model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=8, bf16=True)
Trainer(model=model, args=arguments, train_dataset=dataset).train()
