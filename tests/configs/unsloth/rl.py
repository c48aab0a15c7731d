from trl import GRPOConfig, GRPOTrainer
from unsloth import FastLanguageModel

model, tokenizer = FastLanguageModel.from_pretrained("Qwen/Qwen2.5-3B-Instruct")
model = FastLanguageModel.get_peft_model(model, r=64)
GRPOTrainer(model=model, args=GRPOConfig(output_dir="out")).train()
