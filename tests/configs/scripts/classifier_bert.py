from datasets import load_dataset
from transformers import (AutoModelForSequenceClassification, AutoTokenizer,
                          DataCollatorWithPadding, Trainer, TrainingArguments)
import numpy as np, evaluate

checkpoint = "bert-base-uncased"
raw = load_dataset("imdb")
tokenizer = AutoTokenizer.from_pretrained(checkpoint)

def tok(batch):
    return tokenizer(batch["text"], truncation=True, max_length=512)

ds = raw.map(tok, batched=True)
model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=2)
metric = evaluate.load("accuracy")

def compute_metrics(p):
    return metric.compute(predictions=np.argmax(p.predictions, axis=1), references=p.label_ids)

args = TrainingArguments("out", per_device_train_batch_size=16, per_device_eval_batch_size=64, num_train_epochs=3,
                         learning_rate=2e-5, eval_strategy="epoch", fp16=True)
trainer = Trainer(model=model, args=args, train_dataset=ds["train"], eval_dataset=ds["test"],
                  data_collator=DataCollatorWithPadding(tokenizer), compute_metrics=compute_metrics)
trainer.train()
