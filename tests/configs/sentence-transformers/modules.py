import torch
from datasets import Dataset, load_dataset
from peft import LoraConfig
from sentence_transformers import (
    SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses, models
)
from sentence_transformers.evaluation import TripletEvaluator

word = models.Transformer("google-bert/bert-base-uncased", max_seq_length=256)
pooling = models.Pooling(word.get_word_embedding_dimension(), "cls")
model = SentenceTransformer(modules=[word, pooling])
train = load_dataset("sentence-transformers/all-nli", "triplet", split="train")
loss = losses.MultipleNegativesRankingLoss(model)
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
