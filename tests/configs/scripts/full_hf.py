import argparse

from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="Qwen/Qwen2.5-1.5B")
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--output", required=True)
args = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(args.model)


def tokenize(batch):
    return tokenizer(batch["text"], truncation=True, max_length=1024)


model = AutoModelForCausalLM.from_pretrained(args.model, dtype="bfloat16")
training_args = TrainingArguments(
    output_dir=args.output,
    per_device_train_batch_size=args.batch_size,
    gradient_checkpointing=args.checkpointing,
    bf16=True,
    optim="adamw_torch_fused",
    eval_strategy="steps",
)
trainer = Trainer(model=model, args=training_args, train_dataset=None, processing_class=tokenizer)
trainer.train()
