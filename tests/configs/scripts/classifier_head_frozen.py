from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

model = AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen2.5-0.5B", num_labels=5)
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=4, bf16=True)).train()
