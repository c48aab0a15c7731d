from datasets import load_dataset
from transformers import AutoModelForTokenClassification, AutoTokenizer, DataCollatorForTokenClassification, Trainer, TrainingArguments
tokenizer = AutoTokenizer.from_pretrained("roberta-base", add_prefix_space=True)
model = AutoModelForTokenClassification.from_pretrained("roberta-base", num_labels=9, id2label={0:"O"}, label2id={"O":0})
args = TrainingArguments(output_dir="ner", per_device_train_batch_size=32, bf16=True)
Trainer(model, args, train_dataset=load_dataset("conll2003")["train"], data_collator=DataCollatorForTokenClassification(tokenizer), processing_class=tokenizer).train()
