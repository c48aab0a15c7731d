from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel

model, tokenizer = FastLanguageModel.from_pretrained(
    "Qwen/Qwen2.5-3B-Instruct", fast_inference=True, gpu_memory_utilization=0.6
)
model = FastLanguageModel.get_peft_model(model, r=64)
SFTTrainer(model=model, args=SFTConfig(output_dir="out")).train()
