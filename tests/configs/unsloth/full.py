from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel

model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="Qwen/Qwen2.5-0.5B", max_seq_length=1024, full_finetuning=True, load_in_4bit=False
)
SFTTrainer(model=model, train_dataset=None, args=SFTConfig(output_dir="out", packing=True)).train()
