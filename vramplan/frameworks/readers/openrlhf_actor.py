"""OpenRLHF's reinforcement training, ``train_ppo_ray``: the GPUs of its actor (0.11.2, and 0.7 to 0.9 without dots).

The actor's GPUs come first, with the models that share them; other groups of GPUs are jobs of their own
(:mod:`vramplan.frameworks.readers.openrlhf_apart`).
"""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.gpu_groups import Engines
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, allocator_settings
from vramplan.frameworks.readers.openrlhf_apart import groups_apart
from vramplan.frameworks.readers.openrlhf_engine import (
    check_engine,
    read_attention,
    read_dtype,
    read_method,
    read_zero,
)
from vramplan.frameworks.readers.openrlhf_groups import (
    NAMES,
    SAMPLES,
    TENSOR_PARALLEL,
    Group,
    critic_of,
    estimator_of,
    gpus_of,
    groups_of,
    shared_reward_model_of,
)
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.job_values import FUSED_KERNELS
from vramplan.units import ceil_div

PROGRAM = "train_ppo_ray"
MICRO_BATCH, BATCH = ("train.micro_batch_size", "micro_train_batch_size"), ("train.batch_size", "train_batch_size")
SCORED = ("rollout.micro_batch_size", "micro_rollout_batch_size")
BUDGET = ("train.max_tokens_per_gpu", "train_max_tokens_per_gpu")
SCORED_TOKENS = ("rollout.max_tokens_per_gpu", "rollout_max_tokens_per_gpu")
SHARE = ("vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization")
SLEEPS = ("ds.enable_sleep", "deepspeed_enable_sleep")
CHECKPOINTS = ("actor.gradient_checkpointing_enable", "gradient_checkpointing")
NOT_MODELLED = (
    "train.enable_ema", "enable_ema", "data.max_images_per_prompt", "ds.load_in_4bit", "load_in_4bit", "pretrain_data",
    "actor.aux_loss_coef", "aux_loss_coef",
)  # fmt: skip
"""Settings that change memory, and are not modelled unless they are off."""


def read(config: ConfigReader, version: str) -> ParsedConfig:
    """The job of the actor's GPUs.

    Raises:
        UnsupportedError: for what is not modelled.
        ConfigError: for settings with which OpenRLHF stops.
    """
    for name in NOT_MODELLED:
        config.require_off(name)
    groups = list(groups_of(config))
    gpus = gpus_of(config, "actor")
    dtype, stage = read_dtype(config), config.integer("ds.zero_stage", "zero_stage", default=2, least=0)
    check_engine(config, dtype, stage)
    batch, attention, longest = _batch(config, gpus), read_attention(config), _longest(config)
    has_dots = _has_dots(config)
    job: dict[str, Any] = {
        "task": "grpo",
        "loss": "kept_log_probs",
        "loop": "plain",
        "dtype": dtype,
        "autocast": "none",
        "optimizer": "adamw_torch_fused",  # DeepSpeed's FusedAdam has the same states
        "num_generations": config.integer(*SAMPLES, default=1),
        "num_gpus": gpus,
        "strategy": f"zero{stage}",
        "zero": read_zero(config, stage),
        "checkpointing": "none",
        "attention": attention if batch["batches"] == "padded" else "flash",
        **read_method(config, dtype, stage),
        **batch,
        **_vllm(config, groups, longest),
        **allocator_settings(config, expandable=False),
    }
    if config.boolean(*CHECKPOINTS, default=False):
        job["checkpointing"] = "full"
        job["reentrant"] = config.boolean(
            "actor.gradient_checkpointing_reentrant", "gradient_checkpointing_use_reentrant", default=False
        )
    if config.boolean("ds.adam_offload", "adam_offload", default=False):
        job["offload"] = "optimizer"
    if config.boolean("ds.use_liger_kernel", "use_liger_kernel", default=False):
        job["fused_kernels"] = FUSED_KERNELS
    shared = [group.name for group in groups if group.is_shared and group.name != "vLLM"]
    if "the reference" in shared and not _offloads_reference(config, stage):
        job["reference"] = "model"
    job["openrlhf"] = _openrlhf(config, batch, len(shared))
    if "the critic" in shared:
        job["openrlhf"]["critic"] = critic_of(config)
    if "the reward model" in shared and not (_offloads(config, "reward.offload") and stage == 3):
        job["reward_model"] = shared_reward_model_of(config)
    _note(config, job)
    parsed = ParsedConfig(
        "openrlhf",
        version,
        config.string("actor.model_name_or_path", "pretrain") or "",
        job,
        _names(config, batch),
        config.notes,
        task=f"{NAMES[estimator_of(config)]}, the actor's GPUs",
        rows="packed" if batch["batches"] == "packed" else "samples",
    )

    def batch_on(gpus: int) -> dict[str, Any]:
        return batch if gpus == job["num_gpus"] else _batch(config, gpus)

    engines = Engines(config.number(*SHARE, default=0.95), config.integer(*TENSOR_PARALLEL, default=1), longest)
    others = groups_apart(config, parsed, groups, batch_on, engines, lambda key: _offloads(config, key) and stage == 3)
    parsed.groups = tuple(others if has_dots else (one._replace(key=one.key.replace(".", "_")) for one in others))
    return parsed


def _has_dots(config: ConfigReader) -> bool:
    """Whether flags have dots, as from 0.10 on."""
    return any("." in name for name in config.source.settings)


def _vllm(config: ConfigReader, groups: list[Group], longest: int) -> dict[str, Any]:
    """The engine on the actor's GPUs, or on others."""
    sleeps = config.boolean("vllm.enable_sleep", "vllm_enable_sleep", default=False)
    share, parallel = config.number(*SHARE, default=0.95), config.integer(*TENSOR_PARALLEL, default=1)
    if not groups[-1].is_shared:
        return {"generate_with": "vllm_server"}
    return {
        "generate_with": "vllm_sleep" if sleeps else "vllm",
        "vllm_share": share,
        "vllm_tensor_parallel": parallel,
        "vllm_max_length": longest,
    }


def _longest(config: ConfigReader) -> int:
    """Tokens of a prompt with its response; up to 0.8 each of them has a limit."""
    own = config.integer("data.max_len", "max_len", default=2048)
    if not config.has("prompt_max_len", "generate_max_len"):
        if not config.has("data.max_len", "max_len"):
            config.note("default", "data.max_len", "not set: 2048")
        return own
    both = config.integer("prompt_max_len", default=1024) + config.integer("generate_max_len", default=1024)
    return min(own, both) if config.has("max_len") else both


def _batch(config: ConfigReader, gpus: int) -> dict[str, Any]:
    """The micro-batches of an update, whose samples are all as long as they may be."""
    longest, has_dots = _longest(config), _has_dots(config)
    packs = config.boolean("ds.packing_samples", "packing_samples", default=False)
    samples = max(1, config.integer(*BATCH, default=128) // gpus)
    micro = config.integer(*MICRO_BATCH, default=1 if has_dots else 4)
    if config.boolean("train.dynamic_batch_enable", "use_dynamic_batch", default=False):
        config.read_keys |= {*MICRO_BATCH, *SCORED}
        budget, total = config.integer(*BUDGET, default=16192), samples * longest
        if longest < budget < total:
            fullest = min(total, budget + longest)
            config.note(
                "doubt",
                _given(config, BUDGET),
                "decides how many micro-batches there are; OpenRLHF divides samples evenly among them, so that one may"
                f" hold up to {fullest:,} tokens; --set {_given(config, BUDGET)}={fullest} says whether they fit",
            )
        tokens = min(max(budget, longest), total)
        return {
            "batches": "packed",
            "sequence_length": tokens,
            "micro_batch_size": 1,
            "gradient_accumulation_steps": ceil_div(total, tokens),
        }
    return {
        "batches": "unpadded" if packs else "padded",
        "sequence_length": longest,
        "micro_batch_size": micro,
        "gradient_accumulation_steps": max(1, samples // micro),
    }


def _openrlhf(config: ConfigReader, batch: dict[str, Any], processes: int) -> dict[str, Any]:
    """What OpenRLHF alone has: temperature, the KL term, scoring, host memory, and other processes."""
    divides = config.number("rollout.temperature", "temperature", default=1.0) != 1
    found: dict[str, Any] = {
        "divides_logits": divides,
        "entropy_loss": _has_entropies(config, divides),
        "kl_loss": config.boolean("algo.kl.use_loss", "use_kl_loss", default=False),
        "sleeps": config.boolean(*SLEEPS, default=False),
        "processes": processes,
    }
    if batch["batches"] == "packed":
        budget = config.integer(*BUDGET, default=16192)
        found["scored_tokens"] = max(config.integer(*SCORED_TOKENS, default=budget), _longest(config))
    else:
        found["scored_samples"] = config.integer(*SCORED, default=1 if _has_dots(config) else 8)
    return found


def _offloads_reference(config: ConfigReader, stage: int) -> bool:
    """Whether the reference's weights wait on the host, which DeepSpeed does at stage 3 alone."""
    return _offloads(config, "ref.offload") and stage == 3


def _offloads(config: ConfigReader, key: str) -> bool:
    """Whether a model's engine is told to keep weights on the host."""
    return config.boolean(key, "ref_reward_offload", default=False)


def _has_entropies(config: ConfigReader, divides: bool) -> bool:
    """Whether the loss has entropies; with a coefficient of 0 they are for logs, and hold no logits of their own.

    Raises:
        ConfigError: if logits are divided where they lie after entropies were taken of them, at which autograd stops.
    """
    coefficient = config.number("actor.entropy_coef", "entropy_loss_coef", default=0.0)
    if coefficient and divides:
        raise ConfigError(
            f"{config.source.where}: entropies in the loss at a temperature other than 1: OpenRLHF divides the logits"
            " that they need in place, and PyTorch stops in backward (modified by an inplace operation)"
        )
    return coefficient != 0


def _note(config: ConfigReader, job: dict[str, Any]) -> None:
    """Name what stops, and defaults."""
    if job["method"] == "lora":
        config.note(
            "warning",
            "ds.lora.rank" if config.has("ds.lora.rank") else "lora_rank",
            "OpenRLHF stops as it sends adapters to vLLM, which does not know their names (OpenRLHF#1349)",
        )
    if job["openrlhf"]["sleeps"] and job["strategy"] != "zero3" and "offload" not in job:
        key = _given(config, SLEEPS)
        config.note("warning", key, "below ZeRO-3 needs DeepSpeed 0.17.6 or later; OpenRLHF stops with an older one")
    for names, default in ((BATCH, "128"), (SHARE, "0.95")):
        if not config.has(*names) and (names != SHARE or "vllm_share" in job):
            config.note("default", names[0], f"not set: {default}")


def _given(config: ConfigReader, names: tuple[str, str]) -> str:
    """The name that a setting has in this configuration."""
    return names[1] if config.has(names[1]) else names[0]


def _names(config: ConfigReader, batch: dict[str, Any]) -> dict[str, KeyNames]:
    """The keys of what may be changed."""
    new = _has_dots(config)
    at = 0 if new else 1
    stage = ("ds.zero_stage", "zero_stage")[at]
    names: dict[str, KeyNames] = {
        "strategy": {"zero3": f"{stage} 3"},
        "lora_rank": ("ds.lora.rank", "lora_rank")[at],
        "vllm_share": SHARE[at],
        "vllm_tensor_parallel": TENSOR_PARALLEL[at],
    }
    if batch["batches"] == "packed":
        return names | {"sequence_length": BUDGET[at]}
    names["micro_batch_size"] = MICRO_BATCH[at]
    if new or config.has("max_len"):
        names["sequence_length"] = ("data.max_len", "max_len")[at]
    return names
