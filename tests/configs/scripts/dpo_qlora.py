import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import DPOConfig, DPOTrainer

name = "Qwen/Qwen2.5-7B-Instruct"
bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained(name, quantization_config=bnb, dtype=torch.bfloat16, device_map={"": 0})
tokenizer = AutoTokenizer.from_pretrained(name)
args = DPOConfig(
    output_dir="o", beta=0.1, max_length=1024, per_device_train_batch_size=1, gradient_accumulation_steps=8, bf16=True
)
trainer = DPOTrainer(
    model,
    ref_model=None,
    args=args,
    train_dataset=load_dataset("x")["train"],
    processing_class=tokenizer,
    peft_config=LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"),
)
trainer.train()
