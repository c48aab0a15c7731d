from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel

options = dict(max_seq_length=256, load_in_4bit=False, dtype="bfloat16")
model, tokenizer = FastLanguageModel.from_pretrained("Qwen/Qwen2.5-1.5B", **options)
model = FastLanguageModel.get_peft_model(model, r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.05)
args = SFTConfig(output_dir="out", per_device_train_batch_size=8, gradient_accumulation_steps=1, optim="adamw_torch")
SFTTrainer(model=model, args=args, train_dataset=None).train()
