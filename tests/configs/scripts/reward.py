from trl import RewardConfig, RewardTrainer
from transformers import AutoModelForSequenceClassification
import torch

m = AutoModelForSequenceClassification.from_pretrained(
    "Qwen/Qwen2.5-0.5B-Instruct", num_labels=1, torch_dtype=torch.bfloat16
)
t = RewardTrainer(
    model=m, args=RewardConfig(output_dir="x", max_length=512, per_device_train_batch_size=2), train_dataset=None
)
t.train()
