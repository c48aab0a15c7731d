import re
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


def reward_len(completions, **kwargs):
    return [-abs(20 - len(c)) for c in completions]


def format_reward(completions, **kwargs):
    return [1.0 if re.match(r"<think>", c) else 0.0 for c in completions]


training_args = GRPOConfig(
    output_dir="g",
    max_completion_length=256,
    num_generations=8,
    per_device_train_batch_size=8,
    use_vllm=True,
    vllm_mode="colocate",
    vllm_gpu_memory_utilization=0.4,
    bf16=True,
    model_init_kwargs={"dtype": "bfloat16"},
)
trainer = GRPOTrainer(
    model="Qwen/Qwen2-0.5B-Instruct",
    reward_funcs=[reward_len, format_reward],
    args=training_args,
    train_dataset=load_dataset("trl-lib/tldr", split="train"),
    peft_config=LoraConfig(r=16),
)
trainer.train()
