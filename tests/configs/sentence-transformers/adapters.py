import torch
from datasets import Dataset, load_dataset
from peft import LoraConfig
from sentence_transformers import (
    SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses, models
)
from sentence_transformers.evaluation import TripletEvaluator

model = SentenceTransformer("Qwen/Qwen3-Embedding-0.6B", model_kwargs={"dtype": torch.bfloat16},
    tokenizer_kwargs={"model_max_length": 512})
model.add_adapter(LoraConfig(task_type="FEATURE_EXTRACTION", r=64))
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
