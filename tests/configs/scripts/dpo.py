from trl import DPOConfig, DPOTrainer

trainer = DPOTrainer(model="Qwen/Qwen2.5-0.5B", args=DPOConfig(output_dir="out"), train_dataset=None)
