"""A Llama of random weights under Trainer: layers, width, batch, length, batch of evaluations (0: none)."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

layers, width, batch, length, evaluation = map(int, sys.argv[1:6])


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (length,))
        return {"input_ids": ids, "labels": ids}


config = LlamaConfig(
    hidden_size=width,
    intermediate_size=4 * width,
    num_hidden_layers=layers,
    num_attention_heads=width // 64,
    num_key_value_heads=width // 64,
    vocab_size=32000,
    max_position_embeddings=length,
)
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=batch,
    per_device_eval_batch_size=max(evaluation, 1),
    max_steps=4,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    eval_strategy="steps" if evaluation else "no",
    eval_steps=2,
    bf16=True,
)
Trainer(LlamaForCausalLM(config), arguments, train_dataset=Samples(), eval_dataset=Samples()).train()
