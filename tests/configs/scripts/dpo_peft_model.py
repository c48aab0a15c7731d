from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

model = get_peft_model(AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct"), LoraConfig(r=8))
DPOTrainer(model=model, args=DPOConfig(output_dir="x"), train_dataset=d).train()
