"""ms-swift's ``swift rlhf --rlhf_type ppo`` (3.12 and 4.6: rlhf_args.py, rlhf_trainers/ppo_trainer.py).

The loop is that of TRL's PPOTrainer. Of ms-swift are the models, all loaded in one dtype, the value model's adapters,
and the autocast of transformers' Trainer, whose ``__init__`` runs before TRL's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.nearest import estimate_command, refuse_task
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, at_least
from vramplan.frameworks.readers import trl_ppo
from vramplan.frameworks.readers.ms_swift_rollout import completion_length, length_fields
from vramplan.frameworks.readers.ms_swift_rows import refuse_rows
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers.config_text import Pairs
from vramplan.inputs.job import Job
from vramplan.inputs.ppo_rules import STRATEGIES

SINCE = "3.12"
"""The first version that was read."""
NAMES: Mapping[str, KeyNames] = trl_ppo.NAMES
"""Its keys for the fields that a user may change."""
NUMBERS = (
    "num_ppo_epochs", "whiten_rewards", "kl_coef", "kl_estimator", "cliprange", "vf_coef", "cliprange_value", "gamma",
    "lam", "missing_eos_penalty", "temperature", "ref_model", "reward_model_type", "reward_model_revision",
    "reward_template", "ds3_gather_for_generation", "loss_scale",
)  # fmt: skip
"""Settings that change no large tensor."""
NOT_MODELLED: Mapping[str, str] = {
    **dict.fromkeys(
        ("adapters", "ref_adapters", "reward_adapters", "resume_from_checkpoint"),
        "with rlhf_type ppo is not modelled yet",
    ),
    "use_liger_kernel": "with rlhf_type ppo was not compared with a run",
    "use_vllm": "with rlhf_type ppo has no effect: its completions come from transformers' generate",
    "sequence_parallel_size": "with rlhf_type ppo is not modelled",
}
"""Settings that would move memory -> why they are refused."""


def task_fields(config: ConfigReader, version: str, model: str, job: dict[str, Any]) -> dict[str, Any]:
    """What ppo changes in a job that has been read for supervised fine-tuning.

    Raises:
        ConfigError: for what ms-swift or TRL stops at.
        UnsupportedError: for a setting that is not modelled.
    """
    if not at_least(version, SINCE):
        raise refuse_task(config, "rlhf_type", "ppo", model, job)
    for name, why in NOT_MODELLED.items():
        usual = 1 if name == "sequence_parallel_size" else None
        config.require_off(name, usual, why=f"{why}; the rest is read with {setting('set', f'{name}=')}")
    refuse_rows(config, "rlhf_type ppo")
    fields: dict[str, Any] = {
        "task": "ppo",
        "ppo_trainer": "ms_swift",
        "loss": "standard",
        "batches": "padded",
        "checkpointing": "none",
        **_models(config, model, job),
        "rollout_batch_size": config.integer("local_rollout_forward_batch_size", default=64),
    }
    if not config.has("local_rollout_forward_batch_size"):
        config.note("default", "local_rollout_forward_batch_size", "not set: 64")
    if job["method"] != "full":
        fields["lora_dropout"] = 0.0  # disable_dropout_in_model
    trl_ppo.check_mini_batches(config, "0.29", job)
    fields |= length_fields(config, job, completion_length(config), {})
    _check_strategy(config, model, {**job, **fields})
    if config.boolean("gradient_checkpointing", default=False):
        config.note("warning", "gradient_checkpointing", "has no effect: ms-swift's PPOTrainer never switches it on")
    config.read_keys |= {*NUMBERS, "gradient_checkpointing"}
    return fields


def finish(parsed: ParsedConfig, config: ConfigReader) -> None:
    """The keys that have an effect, and how long completions are where no limit of the prompt is known."""
    dropped = (*trl_ppo.WITHOUT_EFFECT, "sequence_length")
    parsed.names = {**{name: keys for name, keys in parsed.names.items() if name not in dropped}, **NAMES}
    parsed.names["strategy"] = {"zero2": "deepspeed zero2", "zero3": "deepspeed zero3"}
    has_data = config.has("val_dataset") or config.number("split_dataset_ratio", default=0.0) > 0
    parsed.eval_batch_size = trl_ppo.samples_at_a_time(config, parsed.job, has_data, default=1)
    if "sequence_length" not in parsed.job:
        parsed.completion_length = completion_length(config)


def _models(config: ConfigReader, model: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Value and reward model, loaded from one place in the policy's dtype (pipelines/train/rlhf.py)."""
    names = config.strings("reward_model")
    if len(names) != 1:
        at = config.place("reward_model") if names else config.source.where
        raise ConfigError(
            f"{at}: ms-swift stops at rlhf_type ppo with {len(names)} reward models; give one:"
            f" {setting('set', 'reward_model=MODEL')}"
        )
    if job.get("quantize", "none") != "none":
        raise config.unsupported("quant_bits", "with rlhf_type ppo is not modelled; leave it out")
    if config.has("ref_model"):
        if job["method"] != "full":
            raise ConfigError(
                f"{config.place('ref_model')}: ms-swift stops at ref_model beside adapters: the reference is the base"
                " model"
            )
        if config.string("ref_model") != model:
            raise config.unsupported("ref_model", "other than the model itself is not modelled yet")
    return {"value_model": names[0], "reward_model": names[0]}


def _check_strategy(config: ConfigReader, model: str, job: Mapping[str, Any]) -> None:
    """Refuse what shares the work in a way that is not modelled.

    Raises:
        UnsupportedError: naming it, with the nearest estimate.
    """
    strategy, offload = job.get("strategy", "ddp"), job.get("offload", "none")
    if strategy in STRATEGIES and offload == "none":
        return
    nearest = {name: value for name, value in job.items() if name not in ("loss", "batches", "offload")}
    lengths = "" if "sequence_length" in nearest else " --seq-len N --prompt-len N"
    if strategy.startswith("zero"):
        key, what = "deepspeed", "with rlhf_type ppo is not modelled; nearest, with states on the GPU"
    else:
        key, what = "rlhf_type", f"under {strategy} is not modelled; nearest, under ZeRO-3"
        nearest["strategy"] = "zero3"
    if nearest["strategy"] == "zero3" and job["method"] != "full":
        nearest["lora_dtype"] = job["dtype"]  # DeepSpeed stops at others beside the value model's head
    raise config.unsupported(key, f"{what}: {estimate_command(model, nearest)}{lengths}")


def ppo_pairs(job: Job) -> Pairs:
    """PPO of a job, for a command; empty for others.

    Raises:
        UnsupportedError: for models that ms-swift does not load.
    """
    if job.task != "ppo":
        return {}
    if job.ppo_trainer != "ms_swift" or job.value_model != job.reward_model:
        raise UnsupportedError(
            f"{setting('for_framework', 'swift')}: PPO is written with {setting('ppo_trainer', 'ms_swift')} and one"
            f" model as {setting('value_model')} and {setting('reward_model')}, which ms-swift loads from one place"
        )
    prompt = job.prompt_length or 1
    return {
        "reward_model": str(job.reward_model),
        "max_length": prompt,
        "max_completion_length": job.sequence_length - prompt,
        "local_rollout_forward_batch_size": job.rollout_batch_size,
        "num_sample_generations": 0,
    }
