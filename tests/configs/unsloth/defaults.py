from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel

model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Llama-3.2-1B-Instruct")
model = FastLanguageModel.get_peft_model(model)
SFTTrainer(model=model, train_dataset=None, args=SFTConfig(output_dir="out")).train()
