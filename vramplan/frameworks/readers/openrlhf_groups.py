"""The groups of GPUs of OpenRLHF's reinforcement training: its models and vLLM, and which of them share the actor's.

Each model is a group of Ray's processes, each with a GPU of its own unless models are colocated (0.11.2:
cli/train_ppo_ray.py, trainer/ray/launcher.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vramplan.errors import ConfigError, HubError, UnsupportedError, VramplanError, setting
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.model_names import named_model

ESTIMATOR = ("algo.advantage.estimator", "advantage_estimator")
COLOCATES = ("train.colocate_all", "colocate_all_models")
WITH_REFERENCE = ("train.colocate_actor_ref", "colocate_actor_ref")
WITH_REWARD = ("train.colocate_critic_reward", "colocate_critic_reward")
TENSOR_PARALLEL = ("vllm.tensor_parallel_size", "vllm_tensor_parallel_size")
ENGINES = ("vllm.num_engines", "vllm_num_engines")
ACTOR = ("actor.model_name_or_path", "pretrain")
CRITIC = ("critic.model_name_or_path", "critic_pretrain")
REWARD = ("reward.model_name_or_path", "reward_pretrain")
NAMES = {
    "gae": "PPO", "reinforce": "REINFORCE++", "reinforce_baseline": "REINFORCE++-baseline", "rloo": "RLOO",
    "group_norm": "GRPO", "dr_grpo": "Dr. GRPO",
}  # fmt: skip
"""Estimators of advantages, and what training with them is called."""
SAMPLES = ("rollout.n_samples_per_prompt", "n_samples_per_prompt")
COMPARES = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
"""Estimators that compare samples of a prompt."""


class Group(NamedTuple):
    """A model, or vLLM, and where it is."""

    name: str
    key: str
    """The setting that says how many GPUs it has."""
    gpus: int
    is_shared: bool
    """Whether it is on the actor's GPUs."""
    is_beside_critic: bool = False
    """Whether it is on the critic's."""


def estimator_of(config: ConfigReader) -> str:
    """The estimator of advantages, which decides whether there is a critic.

    Raises:
        ConfigError: for one that OpenRLHF does not have, or stops at with one sample of a prompt.
    """
    name = config.lowercase(*ESTIMATOR, default="gae")
    if name not in NAMES:
        raise config.invalid(ESTIMATOR, ", ".join(NAMES))
    if name in COMPARES and config.integer(*SAMPLES, default=1) < 2:
        key = SAMPLES[0] if config.has(ESTIMATOR[0]) else SAMPLES[1]
        raise ConfigError(f"{config.source.where}: {name} needs {key} of 2 or more: OpenRLHF stops at less")
    return name


def gpus_of(config: ConfigReader, model: str) -> int:
    """GPUs of a model's group."""
    each = config.integer(f"{model}.num_gpus_per_node", f"{model}_num_gpus_per_node", default=8, least=0)
    return each * config.integer(f"{model}.num_nodes", f"{model}_num_nodes", default=1, least=0)


def groups_of(config: ConfigReader) -> Iterator[Group]:
    """The models beside the actor, and vLLM."""
    shares = config.boolean(*COLOCATES, default=False)
    with_reference = config.boolean(*WITH_REFERENCE, default=False) or shares
    if config.number("algo.kl.init_coef", "init_kl_coef", default=0.01) > 0:
        gpus = gpus_of(config, "ref")
        if with_reference and gpus != gpus_of(config, "actor"):
            raise ConfigError(
                f"{config.source.where}: {gpus} GPUs of the reference and {gpus_of(config, 'actor')} of the actor:"
                " OpenRLHF stops at that when they are colocated"
            )
        yield Group("the reference", "ref.num_gpus_per_node", gpus, with_reference)
    has_critic = estimator_of(config) == "gae"
    if has_critic:
        yield Group("the critic", "critic.num_gpus_per_node", gpus_of(config, "critic"), shares)
    remote = config.string("reward.remote_url", "remote_rm_url") or config.string(
        "train.agent_func_path", "agent_func_path"
    )
    if not remote:
        on_critics = has_critic and config.boolean(*WITH_REWARD, default=False)
        gpus, beside = gpus_of(config, "reward"), on_critics and not shares
        if on_critics and gpus != gpus_of(config, "critic"):
            raise ConfigError(
                f"{config.source.where}: {gpus_of(config, 'critic')} GPUs of the critic and {gpus} of the reward model:"
                " OpenRLHF stops at that when they are colocated"
            )
        yield Group("the reward model", "reward.num_gpus_per_node", gpus, shares, beside)
    engines = config.integer(*ENGINES, default=0, least=0)
    if not engines:
        raise UnsupportedError(
            f"{config.source.where}: {ENGINES[0]} is not set: completions by transformers are not modelled in"
            " OpenRLHF's trainer (0.11 has vLLM alone)"
        )
    is_async = config.boolean("train.async_enable", "async_train", default=False)
    parallel = config.integer(*TENSOR_PARALLEL, default=1)
    beside = shares and not is_async
    if beside and engines * parallel != gpus_of(config, "actor"):
        raise ConfigError(
            f"{config.source.where}: {engines} x {parallel} GPUs of vLLM and {gpus_of(config, 'actor')} of the actor:"
            " OpenRLHF stops at that when all models are colocated"
        )
    yield Group("vLLM", ENGINES[0], engines * parallel, beside)


def reward_model_of(config: ConfigReader) -> str:
    """The reward model.

    Raises:
        ConfigError: if there is none, or several, of which OpenRLHF takes one.
    """
    name = config.string(*REWARD)
    if name is None:
        raise ConfigError(
            f"{config.source.where}: neither reward.model_name_or_path nor reward.remote_url is set: OpenRLHF has no"
            " rewards then"
        )
    return name


def shared_reward_model_of(config: ConfigReader) -> str:
    """The name by which the reward model on the actor's GPUs is known here.

    Raises:
        VramplanError: if it is not known, naming the setting.
    """
    return _named(config, REWARD, reward_model_of(config))


def own_critic(config: ConfigReader) -> str:
    """The model that the critic begins with: its own, or the reward model's; empty if the actor's."""
    keys = _critic_keys(config)
    name = config.string(*keys) if keys != REWARD else reward_model_of(config).partition(",")[0]
    return "" if name == config.string(*ACTOR) else name or ""


def critic_of(config: ConfigReader) -> str:
    """The name by which the model that the critic begins with is known here (cli/train_ppo_ray.py).

    Raises:
        VramplanError: if it is not known, naming the setting.
    """
    name = own_critic(config)
    return _named(config, _critic_keys(config), name) if name else _named(config, ACTOR, config.string(*ACTOR) or "")


def _critic_keys(config: ConfigReader) -> tuple[str, str]:
    """The keys of the model that the critic begins with."""
    if config.string(*CRITIC):
        return CRITIC
    remote = config.string("reward.remote_url", "remote_rm_url", "train.agent_func_path", "agent_func_path")
    return REWARD if config.string(*REWARD) and not remote else ACTOR


def _named(config: ConfigReader, keys: tuple[str, str], name: str) -> str:
    """The name by which a model on the actor's GPUs is known here."""
    key = next((key for key in keys if config.has(key)), keys[0])
    try:
        spec, note = named_model(name)
    except VramplanError as error:
        reason = error.text.removeprefix(name).lstrip(": ").partition("; did you mean")[0]
        kind = type(error) if isinstance(error, (UnsupportedError, HubError)) else ConfigError
        way = f"it is on the actor's GPUs, so that these are not known without it: {setting('set', f'{key}=MODEL')}"
        place = config.place(key)
        raise kind(f"{place if name in place else f'{place} {name}'}: {reason}; {way}") from error
    if note:
        config.note("warning", key, note)
    return spec.name
