from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel

model, tokenizer = FastLanguageModel.from_pretrained("Qwen/Qwen2.5-3B-Instruct")
SFTTrainer(model=model, args=SFTConfig(output_dir="out")).train()
