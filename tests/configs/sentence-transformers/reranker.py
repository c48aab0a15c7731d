from datasets import load_dataset
from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

model = CrossEncoder("answerdotai/ModernBERT-base", max_length=512)
args = CrossEncoderTrainingArguments(output_dir="out", per_device_train_batch_size=16, bf16=True)
CrossEncoderTrainer(model, args, load_dataset("a/b", split="train"), loss=BinaryCrossEntropyLoss(model)).train()
