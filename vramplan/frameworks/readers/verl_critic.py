"""The critic of verl's PPO: a second model that trains on the same GPUs (0.4 to 0.9.1).

(trainer/config/critic/dp_critic.yaml; before 0.8 workers/fsdp_workers.py: CriticWorker; since then the engine of the
actor, trainer/ppo/ray_trainer.py and trainer/ppo/v1/trainer_base.py: critic_cfg.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.readers import verl_fsdp, verl_sequence
from vramplan.frameworks.readers.verl_batches import check_holds, most_tokens, note_fullest
from vramplan.frameworks.readers.verl_rl import ACTOR, GENERATIONS, MODEL
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.model_names import named_model
from vramplan.units import ceil_div

CRITIC = "critic."
STRATEGY = f"{CRITIC}strategy"
OWN_MODEL = f"{CRITIC}model.path"
OLD_FSDP = f"{CRITIC}model.fsdp_config."
BUDGET, INFERRED = f"{CRITIC}ppo_max_token_len_per_gpu", f"{CRITIC}ppo_infer_max_token_len_per_gpu"
MICRO_BATCH = f"{CRITIC}ppo_micro_batch_size_per_gpu"
MOST_TOKENS = 32768
"""The default of its budgets."""
LAST_OLD = "0.7.1"
"""The newest version whose critic has keys of its model for FSDP."""
NOT_MODELLED = (
    "model.lora_rank", "model.lora_adapter_path", "model.enable_activation_offload", "model.tiled_mlp.enabled",
    "model.external_lib", "model.use_liger", "optim.override_optimizer_config",
)  # fmt: skip
OF_FSDP = ("forward_prefetch", "mixed_precision", "wrap_policy.min_num_params", "pad_to_length")
"""Settings that change memory, and are not modelled unless they are off."""


def is_old(config: ConfigReader) -> bool:
    """Whether keys are those of verl before 0.8."""
    return any(name.startswith(OLD_FSDP) for name in config.source.settings)


def off(version: str) -> tuple[str, ...]:
    """Its settings that are not modelled unless they are off."""
    return *(f"{CRITIC}{one}" for one in NOT_MODELLED), *(f"{_fsdp(version)}{one}" for one in OF_FSDP)


def not_modelled(config: ConfigReader, version: str) -> Iterator[str]:
    """What of the critic keeps the job from being estimated."""
    fsdp = _fsdp(version)
    for name in off(version):
        if not config.is_off(name, 0, 0.0):
            yield str(config.unsupported(name))
    if config.lowercase(STRATEGY, default="fsdp") not in verl_fsdp.VERSIONS:
        yield str(config.unsupported(STRATEGY, f"is not modelled yet; modelled: {', '.join(verl_fsdp.VERSIONS)}"))
    config.read_keys.add(f"{fsdp}strategy")  # the critic's own replaces it (workers/config/critic.py)
    padding = f"{CRITIC}model.use_remove_padding"
    if _pads(config, version) and (at_least(version, "0.8") or _counts_tokens(config)):
        yield f"{config.place(padding)}: {padding} is off, so rows are padded, which is not modelled with token budgets"
    if not config.has(OWN_MODEL):
        yield f"{config.source.where}: {OWN_MODEL} is not set: verl loads ~/models/deepseek-llm-7b-chat then; give it"


def read_critic(config: ConfigReader, version: str, gpus: int, longest: int, mini_batch: int) -> dict[str, Any]:
    """The fields of :class:`vramplan.inputs.verl.Critic`.

    Args:
        config: the configuration.
        version: verl's.
        gpus: the GPUs of the training.
        longest: tokens of a prompt with its response.
        mini_batch: the default of its prompts of an update, of all GPUs.

    Raises:
        ConfigError: for a batch with which verl stops.
        UnsupportedError: for a setting that is not modelled.
    """
    fsdp = _fsdp(version)
    sharded_by = verl_fsdp.fsdp_version(config, STRATEGY)
    sharding = verl_fsdp.sharding(config, gpus, fsdp, sharded_by)
    offloads = config.boolean(f"{fsdp}offload_policy", default=False) and sharded_by == 2
    for name, modelled in (("use_orig_params", False), ("reshard_after_forward", True)):
        if sharding.get(name, modelled) != modelled:
            raise config.unsupported(f"{fsdp}{name}")
    verl_fsdp.optimizer(config, f"{CRITIC}optim.")
    verl_fsdp.attention(config, f"{CRITIC}model.")
    checkpointing = config.boolean(f"{CRITIC}model.enable_gradient_checkpointing", default=True)
    prompts = config.integer(f"{CRITIC}ppo_mini_batch_size", default=mini_batch)
    shared = verl_sequence.of_critic(config, version, fsdp)
    key = verl_sequence.CRITIC if config.has(verl_sequence.CRITIC) else f"{fsdp}{verl_sequence.NAME}"
    verl_sequence.check_divides(config, key, shared, gpus, removes_padding=not _pads(config, version))
    samples = prompts * config.integer(GENERATIONS, default=1) // (gpus // shared)
    if samples < 1:
        raise ConfigError(f"{config.place(f'{CRITIC}ppo_mini_batch_size')}: fewer samples than {gpus} GPUs")
    return {
        "model": _model(config),
        "dtype": verl_fsdp.dtypes(config, fsdp)["dtype"],
        "checkpointing": "full" if checkpointing else "none",
        "replicas": sharding.get("replicas", 1),
        **({"fsdp_version": 2} if sharded_by == 2 else {}),
        **({"offload_policy": True} if offloads else {}),
        "param_offload": config.boolean(f"{fsdp}param_offload", default=False) and not offloads,
        "optimizer_offload": config.boolean(f"{fsdp}optimizer_offload", default=False) and not offloads,
        **({"sequence_parallel": shared} if shared > 1 else {}),
        **_batch(config, version, gpus // shared, shared, longest, samples),
    }


def offload_keys(version: str) -> str:
    """What stands before ``param_offload`` and ``optimizer_offload``."""
    return _fsdp(version)


def _fsdp(version: str) -> str:
    """What stands before the keys of its FSDP."""
    return f"{CRITIC}fsdp." if at_least(version, "0.8") else OLD_FSDP


def _counts_tokens(config: ConfigReader) -> bool:
    return config.boolean(f"{CRITIC}use_dynamic_bsz", default=config.boolean(f"{ACTOR}use_dynamic_bsz", default=False))


def _batch(config: ConfigReader, version: str, groups: int, shared: int, longest: int, samples: int) -> dict[str, Any]:
    """Its micro-batches, of each group of `shared` GPUs.

    From 0.8 on they are always as many samples as a budget holds: nobody hands on a number.
    """
    if at_least(version, "0.8"):
        for name in (MICRO_BATCH, f"{CRITIC}ppo_micro_batch_size"):
            if config.has(name):
                text = f"is not used from verl 0.8 on: its micro-batches have {MOST_TOKENS:,} tokens, or {INFERRED}"
                config.note("warning", name, text)
        inferred, key = config.integer(INFERRED, default=MOST_TOKENS), INFERRED
        if not at_least(version, "0.9.1"):  # trainer/ppo/v1/trainer_base.py: critic_cfg.engine.max_token_len_per_gpu
            key = BUDGET
        elif config.has(BUDGET) and config.integer(BUDGET, default=MOST_TOKENS) != inferred:
            text = f"is not used from verl 0.9.1 on: its micro-batches have {inferred:,} tokens, by {INFERRED}"
            config.note("warning", BUDGET, text)
        trained = config.integer(key, default=MOST_TOKENS)
        config.read_keys |= {BUDGET, f"{CRITIC}use_dynamic_bsz"}
        return _by_tokens(config, key, trained, inferred, shared, longest, samples)
    if _counts_tokens(config):
        trained = config.integer(BUDGET, default=MOST_TOKENS)
        config.read_keys.add(MICRO_BATCH)
        inferred = config.integer(f"{CRITIC}forward_max_token_len_per_gpu", default=trained)
        return _by_tokens(config, BUDGET, trained, inferred, shared, longest, samples)
    micro = _rows(config, "ppo", groups)
    if micro is None:
        raise ConfigError(f"{config.source.where}: {MICRO_BATCH} is not set: verl stops at that")
    if samples % micro:
        raise ConfigError(
            f"{config.place(MICRO_BATCH)}: {micro} does not divide the {samples} samples of a GPU: verl stops at that"
        )
    return {
        "batches": "padded" if _pads(config, version) else "unpadded",
        "sequence_length": longest,
        "micro_batch_size": micro,
        "gradient_accumulation_steps": samples // micro,
        "scored_tokens": (_rows(config, "forward", groups) or micro) * longest,
    }


def _by_tokens(
    config: ConfigReader, key: str, trained: int, inferred: int, shared: int, longest: int, samples: int
) -> dict[str, Any]:
    """Packed rows of the budgets, or of all tokens if there are not as many: each GPU's part.

    `key` is that of the budget of an update.

    Raises:
        ConfigError: for a budget with which verl stops.
    """
    total, trained = samples * longest, trained * shared
    check_holds(config, key, trained, longest, shared)
    if trained < total:
        note_fullest(config, key, ceil_div(min(total, most_tokens(trained, longest)), shared))
    return {
        "batches": "packed",
        "sequence_length": ceil_div(min(trained, total), shared),
        "gradient_accumulation_steps": ceil_div(total, trained),
        "scored_tokens": ceil_div(min(inferred * shared, total), shared),
    }


def _pads(config: ConfigReader, version: str) -> bool:
    """Whether its rows are padded."""
    return not config.boolean(f"{CRITIC}model.use_remove_padding", default=at_least(version, "0.8"))


def _rows(config: ConfigReader, kind: str, groups: int) -> int | None:
    """Samples of a micro-batch, of ``ppo`` (the update) or ``forward`` (values); None if not set."""
    each, whole = f"{CRITIC}{kind}_micro_batch_size_per_gpu", f"{CRITIC}{kind}_micro_batch_size"
    if config.has(each):
        return config.integer(each, default=1)
    return max(1, config.integer(whole, default=1) // groups) if config.has(whole) else None


def _model(config: ConfigReader) -> str | None:
    """Its model; None if it is the actor's.

    Raises:
        VramplanError: for a name that says nothing certain.
    """
    path = config.string(OWN_MODEL) or ""
    return None if path == config.string(f"{MODEL}path") else named_model(path).spec.name
