"""verl's reinforcement training, ``verl.trainer.main_ppo`` with hydra's overrides: its settings, and what is refused.

Defaults: verl/trainer/config/ppo_trainer.yaml, actor/dp_actor.yaml, rollout/rollout.yaml, data/legacy_data.yaml,
engine/fsdp.yaml (0.9.1). What :mod:`vramplan.frameworks.readers.verl_actor` does not read is refused with the nearest
job of TRL's GRPOTrainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.readers.trainer_arguments import DTYPES
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.token_keys import TOKEN_KEYS
from vramplan.inputs.images import IMAGE_PROCESSORS
from vramplan.inputs.model_names import named_model
from vramplan.units import ceil_div, round_up

PROGRAM, SECTION = "main_ppo", "actor_rollout_ref"
ACTOR, MODEL, ROLLOUT, REF = (f"{SECTION}.{part}." for part in ("actor", "model", "rollout", "ref"))
BUDGET, MICRO_BATCH = f"{ACTOR}ppo_max_token_len_per_gpu", f"{ACTOR}ppo_micro_batch_size_per_gpu"
ENGINES = ("vllm", "sglang")
"""What may generate (``rollout.name``)."""
TENSOR_PARALLEL = f"{ROLLOUT}tensor_model_parallel_size"
MINI_BATCH, GENERATIONS = f"{ACTOR}ppo_mini_batch_size", f"{ROLLOUT}n"
STRATEGY = f"{ACTOR}strategy"
REWARD_MODELS = ("reward.reward_model", "reward_model")
"""Sections of a reward model (trainer/config/reward/reward.yaml), now and before."""


def is_reinforcement(config: ConfigReader) -> bool:
    """Whether a command or a file is for verl's reinforcement training."""
    return PROGRAM in config.source.program or any(key.startswith(f"{SECTION}.") for key in config.source.settings)


def refuse(config: ConfigReader, reasons: Sequence[str], near: str) -> UnsupportedError:
    """The error of a job of which this is not modelled, with the estimate that comes nearest.

    `near` has the settings with which verl's own job is modelled, if there are any.

    Raises:
        ConfigError: for a batch with which verl stops.
    """
    if near:
        return UnsupportedError(f"{'; '.join(reasons)}; nearest, the same with what is modelled: check it with {near}")
    job = nearest_job(config)
    model = config.string(f"{MODEL}path") or "MODEL"
    sees = model_type(config) in IMAGE_PROCESSORS  # whose images are not modelled on shards
    nearest = f"{estimate_command(model, job)}{' --images 0' if sees else ''} --loss standard"  # whole logits, in fp32
    without = f"{' on text alone' if sees else ''}{' without the critic' if has_critic(config) else ''}"
    text = f"{'; '.join(reasons)}; nearest, TRL's GRPOTrainer{without}: {nearest}"
    return UnsupportedError(f"{text}{_budget_text(config, model)}")


def nearest_job(config: ConfigReader) -> dict[str, Any]:
    """The job of TRL's GRPOTrainer that comes nearest: completions padded to the longest, and no reference on the GPU.

    Raises:
        ConfigError: for a batch with which verl stops.
    """
    prompt = config.integer("data.max_prompt_length", default=512)
    length = prompt + config.integer("data.max_response_length", default=512)
    gpus = num_gpus(config)
    generations = config.integer(GENERATIONS, default=1)
    micro = micro_batch(config, length, gpus)
    samples = ceil_div(config.integer(MINI_BATCH, default=256) * generations, gpus)  # of a GPU, for one update
    compared = max(2, generations)
    steps = ceil_div(samples, micro)
    dtype = DTYPES.get(config.lowercase(f"{ACTOR}fsdp_config.model_dtype", default="fp32"), "fp32")
    checkpoints = config.boolean(f"{MODEL}enable_gradient_checkpointing", default=True)
    rank = config.integer(f"{MODEL}lora_rank", default=0, least=0)
    job: dict[str, Any] = {
        "task": "grpo",
        "method": "lora" if rank else "full",
        "dtype": dtype,
        "autocast": "bf16" if dtype == "fp32" else "none",
        "optimizer": "adamw_torch",
        "attention": "flash",
        "checkpointing": "full" if checkpoints else "none",
        "sequence_length": length,
        "prompt_length": prompt,
        "micro_batch_size": micro,
        "gradient_accumulation_steps": round_up(steps, compared),  # a generation has whole groups
        "num_generations": compared,
        "num_gpus": gpus,
        "strategy": "fsdp" if gpus > 1 else "ddp",
        **engine(config, gpus),
    }
    if rank:
        job |= {"lora_rank": rank, "lora_dtype": dtype}
    return job


def model_type(config: ConfigReader) -> str:
    """The architecture; empty for a model that is not known here."""
    name = config.string(f"{MODEL}path") or ""
    with suppress(VramplanError):  # whoever loads it says why it cannot be
        return named_model(name).spec.model_type if name else ""
    return ""


def num_gpus(config: ConfigReader) -> int:
    """GPUs of the training."""
    return config.integer("trainer.n_gpus_per_node", default=8) * config.integer("trainer.nnodes", default=1)


def counts_tokens(config: ConfigReader) -> bool:
    """Whether micro-batches are as many samples as a budget of tokens holds."""
    return config.boolean(f"{ACTOR}use_dynamic_bsz", default=False)


def micro_batch(config: ConfigReader, length: int, gpus: int) -> int:
    """Completions of a micro-batch; of a budget of tokens, as many of the longest as it holds.

    Raises:
        ConfigError: if none is set (verl/workers/config/actor.py: ActorConfig.__post_init__).
    """
    if counts_tokens(config):
        return max(1, config.integer(BUDGET, default=16384) // length)
    whole = f"{ACTOR}ppo_micro_batch_size"  # of all GPUs
    if config.has(whole) and not config.has(MICRO_BATCH):
        return max(1, config.integer(whole, default=1) // gpus)
    if not config.has(MICRO_BATCH):
        raise ConfigError(
            f"{config.source.where}: {MICRO_BATCH} is not set, and {ACTOR}use_dynamic_bsz is off: verl stops at that"
        )
    return config.integer(MICRO_BATCH, default=1)


def engine(config: ConfigReader, gpus: int) -> dict[str, Any]:
    """What generates: vLLM beside the training, asleep while it runs unless its cache is not to be freed.

    Raises:
        ConfigError: if its copies of the model do not divide the GPUs (workers/engine_workers.py: init_model).
    """
    if not config.boolean(f"{SECTION}.hybrid_engine", default=True):
        return {"generate_with": "vllm_server"}
    frees = config.boolean(f"{ROLLOUT}free_cache_engine", default=True)
    share = config.number(f"{ROLLOUT}gpu_memory_utilization", default=0.5)
    parallel = config.integer(TENSOR_PARALLEL, default=2)
    if gpus % parallel:
        given = config.place(TENSOR_PARALLEL) if config.has(TENSOR_PARALLEL) else TENSOR_PARALLEL
        raise ConfigError(f"{given}: {parallel} GPUs for each vLLM do not divide {gpus}: verl stops at that")
    fields: dict[str, Any] = {
        "generate_with": "vllm_sleep" if frees else "vllm",
        "vllm_share": share,
        "vllm_tensor_parallel": parallel,
    }
    longest = f"{ROLLOUT}max_model_len"
    if config.has(longest) and not config.is_null(longest):
        fields["vllm_max_length"] = config.integer(longest, default=1)
    return fields


def first_key(config: ConfigReader) -> str:
    """A key that verl had before 0.4 alone; empty if there is none."""
    found = [name for name in config.source.settings if name.endswith("fsdp_config.grad_offload")]
    config.read_keys.update(found)
    return found[0] if found else ""


def has_critic(config: ConfigReader) -> bool:
    """Whether there is a critic (trainer/ppo/utils.py: need_critic)."""
    has_gae = config.lowercase("algorithm.adv_estimator", default="gae") == "gae"
    return config.boolean("critic.enable", default=has_gae)


def named(config: ConfigReader) -> Iterator[str]:
    """What the nearest estimate leaves out, with the setting that asks for it."""
    for section in REWARD_MODELS:
        apart = config.boolean(f"{section}.enable_resource_pool", default=False)
        if config.boolean(f"{section}.enable", default=False) and not apart:
            yield str(
                config.unsupported(
                    f"{section}.enable", "is a reward model in vLLM on the same GPUs, nor is it in the nearest estimate"
                )
            )
    for name, modelled in (("model_engine", ("dp", "fsdp")), (STRATEGY, ("fsdp", "fsdp2"))):
        if config.lowercase(name, default="fsdp") not in modelled:
            yield str(config.unsupported(name))
    rollout = f"{ROLLOUT}name"
    if config.lowercase(rollout, default="vllm") not in ENGINES:
        yield str(config.unsupported(rollout, f"is not modelled yet; modelled: {', '.join(ENGINES)}"))


def _budget_text(config: ConfigReader, model: str) -> str:
    """What compares the token budget with the largest that fits; empty if samples are counted."""
    if not config.has(BUDGET):
        return ""
    assert BUDGET in TOKEN_KEYS["verl"].settings
    return (
        f"; {BUDGET} {config.integer(BUDGET, default=1):,} is its token budget, and `vramplan suggest {model} --gpu GPU"
        " --tokens --for verl` says the largest that fits"
    )
