"""A DeepSpeed configuration by itself (0.19): batch, precision and ZeRO; model, length and method come from flags."""

from __future__ import annotations

import json
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.framework import Framework, Writer
from vramplan.frameworks.known_keys import refuse_unmodelled
from vramplan.frameworks.parsed_config import ParsedConfig, Words, settle
from vramplan.frameworks.readers import zero_config
from vramplan.frameworks.settings import ConfigReader, ConfigValue
from vramplan.frameworks.writers.config_text import ConfigText, Pairs
from vramplan.frameworks.writers.zero_fsdp import zero_optimization
from vramplan.inputs.job import Job

PACKAGE, NEWEST = "deepspeed", "0.19.8"
MICRO, STEPS, WHOLE = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"
NAMES: dict[str, Words] = {
    "micro_batch_size": MICRO,
    "gradient_accumulation_steps": STEPS,
    "strategy": {"zero3": "zero_optimization.stage 3"},
    "offload": {"optimizer": "zero_optimization.offload_optimizer.device cpu"},
    "autocast": {"fp16": "bf16.enabled false; fp16.enabled true"},
}

FIELDS = ("micro_batch_size", "gradient_accumulation_steps", "dtype", "autocast", "optimizer", "num_gpus", "strategy")
"""Fields of a job that this configuration can say."""


def read(keys: ConfigReader, cards: int, asked: str | None) -> ParsedConfig:
    """The job of a DeepSpeed configuration without the command that names it."""
    version, where = settle(PACKAGE, asked, NEWEST)
    refuse_unmodelled(keys)
    micro, steps = _batch(keys, cards)
    half = next((name for name in ("bf16", "fp16") if _is_on(keys, name)), "none")
    if half == "none" and _is_on(keys, "bfloat16"):
        half = "bf16"
    job: dict[str, Any] = {
        "loop": "trainer",
        "method": "full",
        "micro_batch_size": micro,
        "gradient_accumulation_steps": steps,
        "dtype": "fp32",
        "autocast": half,
        "optimizer": "adamw_torch_fused",
        "num_gpus": cards,
    }
    zero = keys.setting("zero_optimization") or ConfigValue({}, keys.source.where)
    job |= zero_config.fields(keys, zero)
    if not keys.has("optimizer"):
        keys.note("default", "optimizer", "not set: the script's own, taken as fused AdamW")
    keys.note("default", "", "method, checkpointing and length are the script's: --method, --checkpointing, --seq-len")
    return ParsedConfig(PACKAGE, f"{version} ({where})", "", job, NAMES, keys.notes)


def _batch(keys: ConfigReader, cards: int) -> tuple[int, int]:
    """(micro-batch, steps): any two of the three say the third (runtime/config.py: _set_batch_related_parameters)."""
    for name in (MICRO, STEPS, WHOLE):
        if keys.text(name, default="") == "auto":
            raise keys.refuse(name, "is filled in from the Trainer's arguments; check the command that uses this file")
    given = {name: keys.count(name, default=1) if keys.has(name) else None for name in (MICRO, STEPS, WHOLE)}
    micro, steps, whole = given[MICRO], given[STEPS], given[WHOLE]
    if micro is None and whole is None:
        raise ConfigError(f"{keys.source.where}: neither {MICRO} nor {WHOLE} is set; DeepSpeed stops without them")
    if micro is None and whole is not None:
        micro = whole // ((steps or 1) * cards)
    assert micro is not None
    if steps is None:
        steps = 1 if whole is None else whole // (micro * cards)
    if micro < 1 or steps < 1 or (whole is not None and whole != micro * steps * cards):
        raise ConfigError(
            f"{keys.source.where}: {WHOLE} {whole} is not {MICRO} {micro} x {STEPS} {steps} x {cards} cards"
            " (--num-gpus)"
        )
    return micro, steps


def _is_on(keys: ConfigReader, name: str) -> bool:
    part = keys.part(name)
    if part is None or part.text("enabled", default="false") == "auto":
        return False
    return part.flag("enabled", default=False)


def write(model: str, job: Job) -> ConfigText:
    """DeepSpeed's JSON; model, method, length and checkpointing are said by what is trained with it.

    Raises:
        UnsupportedError: for another optimizer than AdamW.
    """
    if job.optimizer != "adamw_torch_fused":
        raise UnsupportedError(
            f"{setting('for_framework', 'deepspeed')}: {setting('optimizer', job.optimizer)} is the script's own;"
            " DeepSpeed's is AdamW"
        )
    half = job.dtype if job.dtype != "fp32" else job.autocast
    pairs: Pairs = {
        "train_micro_batch_size_per_gpu": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "zero_optimization": zero_optimization(job),
    }
    if half in ("bf16", "fp16"):
        pairs[half] = {"enabled": True}
    return ConfigText(pairs, {}, "", file="deepspeed.json", body=json.dumps(pairs, indent=2) + "\n")


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    marks=frozenset(
        {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "zero_allow_untested_optimizer"}
    ),
    writers=(Writer("deepspeed", write, ("zero1", "zero2", "zero3"), FIELDS),),
)
