import torch
from datasets import Dataset, load_dataset
from peft import LoraConfig
from sentence_transformers import (
    SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses, models
)
from sentence_transformers.evaluation import TripletEvaluator

model = SentenceTransformer("BAAI/bge-base-en-v1.5")
train = load_dataset("sentence-transformers/all-nli", "triplet", split="train")
loss = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=16)
evaluator = TripletEvaluator(["a"], ["b"], ["c"])
evaluator(model)
args = SentenceTransformerTrainingArguments(
    output_dir="out", per_device_train_batch_size=32, bf16=True, batch_sampler="no_duplicates"
)
trainer = SentenceTransformerTrainer(
    model=model, args=args, train_dataset=train, loss=loss, evaluator=evaluator
)
trainer.train()
model.save_pretrained("out/final")
