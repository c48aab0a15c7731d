import json

from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

settings = json.load(open("settings.json"))
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="auto")
arguments = TrainingArguments(
    output_dir=settings["out"],
    per_device_train_batch_size=settings["batch"],
)
Trainer(model, arguments).train()
