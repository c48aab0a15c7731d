"""Settings in errors as a configuration spells them: its framework's keys, else words that every framework shares."""

from __future__ import annotations

from collections.abc import Mapping

from vramplan.errors import setting
from vramplan.frameworks.parsed_config import ParsedConfig

STRATEGIES: Mapping[str, str] = {
    "zero0": "ZeRO-0", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "fsdp": "FSDP",
}  # fmt: skip
WORDS: Mapping[str, Mapping[str, str]] = {
    "method": {"full": "full fine-tuning", "lora": "LoRA"},
    "quantize": {"none": "no quantization", "nf4": "four bits", "int8": "eight bits"},
    "offload": {
        "none": "no offloading", "optimizer": "the optimizer offloaded", "all": "weights and optimizer offloaded",
    },
    "reference": {
        "none": "no reference", "model": "a second model as reference",
        "adapters_off": "the model without adapters as reference",
        "frozen_adapters": "frozen adapters as reference",
        "precomputed": "log-probabilities of a reference computed before",
    },
    "reentrant": {"True": "reentrant checkpointing", "False": "checkpointing that is not reentrant"},
    "batches": {"padded": "padded rows", "packed": "packed rows", "flattened": "rows in one", "unpadded": "one row"},
    "generate_with": {
        "transformers": "generation by transformers", "vllm": "vLLM on the same GPUs",
        "vllm_sleep": "vLLM that sleeps", "vllm_server": "a vLLM server",
    },
}  # fmt: skip
"""Values of a job's fields that have no key of their own in most frameworks."""
LOSSES: Mapping[str, str] = {
    "standard": "whole logits", "chunked": "TRL's loss in chunks", "liger": "Liger's loss", "cut": "cut cross-entropy",
    "log_softmax": "its loss", "logits_to_keep": "its loss", "liger_logits_to_keep": "Liger's loss",
    "value_head": "its loss", "fused_log_probs": "TRL's kernel of log-probabilities",
    "axolotl_log_probs": "its kernel of log-probabilities", "divided_in_place": "whole logits",
}  # fmt: skip


def as_key(config: ParsedConfig, field: str, value: str) -> str:
    """A setting as the configuration spells it; one without key and words is left for whoever shows the message.

    >>> config = ParsedConfig("x", "1", "", {"task": "cpo", "strategy": "zero2"}, {}, task="SimPO")
    >>> as_key(config, "task", "cpo"), as_key(config, "strategy", "zero2"), as_key(config, "strategy", "ddp")
    ('SimPO', 'ZeRO-2', 'DDP (without deepspeed)')
    """
    strategy = config.job.get("strategy")
    if field == "strategy" and strategy == "device_map":
        if value == "device_map":
            return f"one process that sees {config.job['num_gpus']} GPUs and places the layers on all of them"
        return f"one process for each GPU ({value})"
    if field == "task":
        return config.task if value == config.job.get("task") else value.upper()
    keys = config.names.get(field)
    if isinstance(keys, str):
        return f"{keys} {value}".rstrip()
    if keys and value in keys and value != str(config.job.get(field)):
        return keys[value]
    if field == "strategy" and value == "ddp":
        engine = "fsdp" if strategy == "fsdp" else "deepspeed"
        return f"DDP (without {engine})" if strategy not in (None, "ddp") else "DDP"
    if field == "vllm_tensor_parallel":
        return f"vLLM's tensor parallelism of {value}"
    words = {"strategy": STRATEGIES, "loss": LOSSES}.get(field) or WORDS.get(field, {})
    return words.get(value) or setting(field, value)
