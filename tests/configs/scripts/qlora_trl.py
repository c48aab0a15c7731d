import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

bnb_config = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_use_double_quant=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_compute_dtype=torch.bfloat16,
)
model = AutoModelForCausalLM.from_pretrained(
    "mistralai/Mistral-7B-v0.3", quantization_config=bnb_config, dtype=torch.bfloat16
)
trainer = SFTTrainer(
    model,
    args=SFTConfig(per_device_train_batch_size=1, gradient_accumulation_steps=16, optim="paged_adamw_8bit"),
    peft_config=LoraConfig(r=64, target_modules="all-linear"),
    train_dataset=None,
)
trainer.train()
