from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

labels = ["a", "b", "c"]
model = AutoModelForSequenceClassification.from_pretrained(
    "FacebookAI/roberta-base", num_labels=len(labels), problem_type="multi_label_classification"
)
Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=4)).train()
