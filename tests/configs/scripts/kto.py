from trl import KTOConfig, KTOTrainer

t = KTOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    args=KTOConfig(output_dir="x", per_device_train_batch_size=2),
    train_dataset=None,
)
t.train()
