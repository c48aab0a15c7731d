from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from unsloth import FastLanguageModel

length, prompt = 1024, 256
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="meta-llama/Llama-3.1-8B-Instruct",
    max_seq_length=length,
    load_in_4bit=True,
    fast_inference=True,
    max_lora_rank=32,
    gpu_memory_utilization=0.6,
)
model = FastLanguageModel.get_peft_model(model, r=32, lora_alpha=32)


def has_an_answer(completions, **columns):
    return [float("answer" in one[0]["content"]) for one in completions]


arguments = GRPOConfig(
    per_device_train_batch_size=1,
    num_generations=6,
    max_prompt_length=prompt,
    max_completion_length=length - prompt,
    optim="paged_adamw_8bit",
    output_dir="out",
)
GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[has_an_answer],
    args=arguments,
    train_dataset=load_dataset("openai/gsm8k", "main", split="train"),
).train()
