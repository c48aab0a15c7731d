from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

config = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "gradient_checkpointing": True}
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
Trainer(model, TrainingArguments(output_dir="out", bf16=True, **config))
