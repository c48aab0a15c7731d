from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.training_args import BatchSamplers

model = SentenceTransformer("google-bert/bert-base-uncased")
train = load_dataset("sentence-transformers/all-nli", "pair", split="train")
args = SentenceTransformerTrainingArguments(
    output_dir="st", num_train_epochs=1, per_device_train_batch_size=64, bf16=True, batch_sampler=BatchSamplers.NO_DUPLICATES,
)
SentenceTransformerTrainer(model=model, args=args, train_dataset=train, loss=MultipleNegativesRankingLoss(model)).train()
