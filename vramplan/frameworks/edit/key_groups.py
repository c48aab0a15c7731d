"""Groups of related keys: a new key goes after the nearest key of its group."""

from __future__ import annotations

from collections.abc import Iterable

GROUPS = (
    (
        "per_device_train_batch_size", "micro_batch_size", "batch_size", "gradient_accumulation_steps",
        "per_device_eval_batch_size", "eval_batch_size",
    ),
    ("max_length", "max_seq_length", "cutoff_len", "sequence_len", "block_size", "model_max_length", "packing"),
    (
        "gradient_checkpointing", "disable_gradient_checkpointing", "activation_checkpointing", "use_liger_kernel",
        "enable_liger_kernel", "use_liger", "plugins", "liger_fused_linear_cross_entropy", "attn_impl", "flash_attn",
        "attn_implementation", "pure_bf16", "bf16", "fp16", "dtype", "torch_dtype", "optim", "optimizer",
    ),
    (
        "tuner_type", "train_type", "finetuning_type", "use_peft", "adapter", "load_in_4bit", "quant_method",
        "quant_bits", "quantization_bit", "lora_r", "lora_rank", "lora_alpha", "lora_target_linear", "lora_dropout",
    ),
)  # fmt: skip
"""In the order in which people write them."""


def nearest(key: str, present: Iterable[str]) -> str | None:
    """The present key to put `key` after; None if no key of its group is present.

    >>> nearest("gradient_accumulation_steps", ["bf16", "per_device_train_batch_size"])
    'per_device_train_batch_size'
    """
    keys = set(present)
    for group in GROUPS:
        if key in group and keys & set(group):
            index = group.index(key)
            before, after = group[:index], group[index + 1 :]
            return next((neighbor for neighbor in (*reversed(before), *after) if neighbor in keys), None)
    return None
