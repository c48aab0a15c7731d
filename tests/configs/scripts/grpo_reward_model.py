from trl import GRPOConfig, GRPOTrainer

GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    reward_funcs="weqweasdas/RM-Gemma-2B",
    args=GRPOConfig(output_dir="x"),
    train_dataset=d,
).train()
