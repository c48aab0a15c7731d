from unsloth import FastLanguageModel, PatchDPOTrainer

PatchDPOTrainer()

from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

model, tokenizer = FastLanguageModel.from_pretrained("unsloth/mistral-7b-v0.3-bnb-4bit", max_seq_length=4096)
model = FastLanguageModel.get_peft_model(model, r=64, lora_alpha=64, use_gradient_checkpointing="unsloth")
trainer = DPOTrainer(
    model=model,
    ref_model=None,
    args=DPOConfig(per_device_train_batch_size=2, gradient_accumulation_steps=4, output_dir="out"),
    beta=0.1,
    max_length=1536,
    max_prompt_length=512,
    tokenizer=tokenizer,
    train_dataset=load_dataset("HuggingFaceH4/ultrafeedback_binarized", split="train_prefs"),
)
trainer.train()
