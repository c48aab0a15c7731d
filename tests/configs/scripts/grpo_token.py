from trl import GRPOConfig
from trl.experimental.gspo_token import GRPOTrainer

GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=[len], args=GRPOConfig(output_dir="out"), train_dataset=d
).train()
