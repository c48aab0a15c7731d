from trl.experimental.orpo import ORPOConfig, ORPOTrainer
from transformers import AutoModelForCausalLM, AutoTokenizer
import torch

m = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", torch_dtype=torch.bfloat16)
t = ORPOTrainer(
    model=m,
    args=ORPOConfig(output_dir="x", beta=0.1, max_length=512, per_device_train_batch_size=2),
    train_dataset=None,
)
t.train()
