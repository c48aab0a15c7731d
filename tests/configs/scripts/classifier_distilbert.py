from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("distilbert/distilbert-base-uncased")
data = load_dataset("imdb").map(lambda batch: tokenizer(batch["text"], truncation=True), batched=True)
id2label = {0: "NEGATIVE", 1: "POSITIVE"}
model = AutoModelForSequenceClassification.from_pretrained(
    "distilbert/distilbert-base-uncased", id2label=id2label, label2id={"NEGATIVE": 0, "POSITIVE": 1}
)
args = TrainingArguments(output_dir="out", per_device_train_batch_size=16, eval_strategy="epoch", num_train_epochs=2)
Trainer(
    model=model, args=args, train_dataset=data["train"], eval_dataset=data["test"], processing_class=tokenizer
).train()
