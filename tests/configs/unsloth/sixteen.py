from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel

model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Qwen3-14B", max_seq_length=4096, load_in_16bit=True)
model = FastLanguageModel.get_peft_model(model, r=32, lora_alpha=32, use_gradient_checkpointing=True)
trainer = SFTTrainer(model=model, train_dataset=None, args=SFTConfig(output_dir="out", per_device_train_batch_size=1))
trainer.train()
