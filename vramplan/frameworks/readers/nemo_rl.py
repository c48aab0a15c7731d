"""NeMo RL's ``examples/run_sft.py`` and its YAML (7ea279abf: examples/configs/sft.yaml); recognised, not estimated.

Its DTensor worker trains fp32 weights under autocast, takes the loss from the log-probabilities of fp32 logits, row by
row of a pack, and under FSDP2 reduces gradients in fp32 (nemo_rl/models/automodel/setup.py, train.py,
algorithms/loss). The nearest job of transformers is named instead, with the token budget as its micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from vramplan.errors import UnsupportedError
from vramplan.frameworks.framework import Framework, Program
from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.settings import ConfigReader, ConfigValue
from vramplan.frameworks.syntax import argv
from vramplan.frameworks.token_keys import TOKEN_KEYS

PACKAGE = "nemo-rl"
PACKING, DYNAMIC = "policy.sequence_packing", "policy.dynamic_batching"
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "none"}
OTHER_TASKS = {
    "grpo": "reinforcement training", "ppo": "reinforcement training", "dpo": "preference training",
    "rm": "training a reward model", "distillation": "distillation",
}  # fmt: skip
"""Sections of other algorithms -> what they train."""
OTHER_PROGRAMS = {"grpo_math": "grpo", "grpo": "grpo", "dpo": "dpo", "rm": "rm", "distillation_math": "distillation"}
"""Scripts beside run_sft.py -> the sections of their algorithms."""


def split(words: Sequence[str]) -> tuple[list[str], dict[str, ConfigValue]]:
    """Words after the script: ``--config FILE``, and Hydra's ``key=value`` and ``++key=value`` behind it."""
    pairs = [word.lstrip("+") for word in words if "=" in word and not word.startswith("-")]
    loose, flags = argv.split([word for word in words if "=" not in word or word.startswith("-")])
    return loose, flags | argv.split(pairs)[1]


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """Nothing: the estimate of the nearest job is named instead.

    Raises:
        ConfigError: for a budget that is no number, or is smaller than a sample may be.
        UnsupportedError: always.
    """
    script = PurePosixPath(config.source.program).stem.removeprefix("run_")
    for section, task in OTHER_TASKS.items():
        is_named = OTHER_PROGRAMS.get(script) == section
        if is_named or any(key.startswith(f"{section}.") for key in config.source.settings):
            text = f"{section}: {task} is not modelled yet"
            raise UnsupportedError(f"{config.source.where}: {text}{_budget_text(config)}")
    if config.boolean("policy.megatron_cfg.enabled", default=False):
        raise UnsupportedError(
            f"{config.place('policy.megatron_cfg.enabled')}: Megatron is not modelled yet{_budget_text(config)}"
        )
    raise UnsupportedError(
        f"{config.source.where}: NeMo RL's own step, with a loss of fp32 log-probabilities and gradients reduced in"
        " fp32, is not modelled yet; nearest, with transformers' step:"
        f" {estimate_command(_model(config), _job(config))}{_budget_text(config)}"
    )


def _model(config: ConfigReader) -> str:
    return config.string("policy.model_name") or "MODEL"


def _job(config: ConfigReader) -> dict[str, Any]:
    """The job of transformers that comes nearest: one packed row of the budget, or samples padded up to it."""
    length = config.integer("policy.max_total_sequence_length", default=1024)
    micro_batch = config.integer("policy.train_micro_batch_size", default=1)
    gpus = config.integer("cluster.gpus_per_node", default=1) * config.integer("cluster.num_nodes", default=1)
    is_lora = config.boolean("policy.dtensor_cfg.lora_cfg.enabled", default=False)
    job: dict[str, Any] = {
        "method": "lora" if is_lora else "full",
        "dtype": "fp32",
        "autocast": PRECISIONS.get(config.lowercase("policy.precision", default="bfloat16"), "bf16"),
        "optimizer": "adamw_torch_loop",
        "loop": "plain",
        "sequence_length": length,
        "micro_batch_size": micro_batch,
        "batches": "padded",
        "checkpointing": "none",
        "num_gpus": gpus,
        "strategy": "fsdp" if gpus > 1 else "ddp",
    }
    if config.boolean("policy.dtensor_cfg.activation_checkpointing", default=False):
        job["checkpointing"] = "full"
    if is_lora:
        job["lora_rank"] = config.integer("policy.dtensor_cfg.lora_cfg.dim", default=8)
    name, tokens = _budget(config)
    if name.startswith(PACKING):
        job |= {"sequence_length": tokens, "micro_batch_size": 1, "batches": "packed", "attention": "flash"}
    elif name:
        job["micro_batch_size"] = max(1, tokens // length)
    return job


def _budget(config: ConfigReader) -> tuple[str, int]:
    """(setting, tokens) of the budget that is on; ("", 0) if samples are counted.

    By default it is max_total_sequence_length x train_micro_batch_size (examples/configs/sft.yaml).
    """
    section = next((one for one in (PACKING, DYNAMIC) if config.boolean(f"{one}.enabled", default=False)), "")
    if not section:
        return "", 0
    name = f"{section}.train_mb_tokens"
    length = config.integer("policy.max_total_sequence_length", default=1024)
    default = length * config.integer("policy.train_micro_batch_size", default=1)
    if (config.string(name) or "").startswith("${mul:"):
        return name, default
    return name, config.integer(name, default=default, least=length)


def _budget_text(config: ConfigReader) -> str:
    """What compares the token budget with the largest that fits; empty without a budget."""
    name, tokens = _budget(config)
    if not name:
        return ""
    assert name in TOKEN_KEYS[PACKAGE].settings
    return (
        f"; {name} {tokens:,} is its token budget, and `vramplan suggest {_model(config)} --gpu GPU --tokens --for"
        f" {PACKAGE}` says the largest that fits"
    )


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    programs=tuple(Program(f"examples/run_{name}.py") for name in ("sft", *OTHER_PROGRAMS)),
    marks=frozenset({"sft", "grpo", "dpo"}),
    in_sections=True,
    split=split,
    overrides="hydra",
)
