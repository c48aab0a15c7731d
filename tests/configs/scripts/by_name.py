from trl import SFTConfig, SFTTrainer

trainer = SFTTrainer(
    model="Qwen/Qwen2.5-0.5B",
    args=SFTConfig(model_init_kwargs={"torch_dtype": "bfloat16"}, max_length=4096, per_device_train_batch_size=4),
    train_dataset=dataset,
)
