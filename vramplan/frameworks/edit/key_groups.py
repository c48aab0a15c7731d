"""Which settings stand together in a configuration: a new one goes after its nearest kin."""

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
    """The present key that `key` is best put behind; None where it has no kin there.

    >>> nearest("gradient_accumulation_steps", ["bf16", "per_device_train_batch_size"])
    'per_device_train_batch_size'
    """
    there = set(present)
    for group in GROUPS:
        if key in group and there & set(group):
            at = group.index(key)
            before, after = group[:at], group[at + 1 :]
            return next((one for one in (*reversed(before), *after) if one in there), None)
    return None
