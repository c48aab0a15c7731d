"""The same configuration of verl with what is not modelled of it replaced: the settings to give to ``check --set``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.readers import verl_critic, verl_images, verl_rl, verl_sequence
from vramplan.frameworks.settings import FALSE, TRUE, ConfigReader, ConfigValue

MOST = 4
"""Settings to replace; with more of them it is another configuration."""


def nearest_settings(
    config: ConfigReader,
    reasons: Sequence[str],
    off: Sequence[str],
    only: Mapping[str, str],
    read: Callable[[ConfigReader], object],
) -> str:
    """The settings to replace, as words; empty if they do not make a modelled configuration.

    Args:
        config: the configuration.
        reasons: what is not modelled of it, each with its setting.
        off: settings that are not modelled unless they are off.
        only: settings of which one value is modelled.
        read: reads a configuration, and raises UnsupportedError for one that is not modelled.
    """
    second = any(verl_images.SECOND in reason for reason in reasons)
    named = [
        *_values(config, only, second),
        *((name, _off(config, name)) for name in off if not config.is_off(name, 0, 0.0)),
    ]
    changes = {name: value for name, value in named if any(name in reason for reason in reasons)}
    if not 0 < len(changes) <= MOST:
        return ""
    values = {name: ConfigValue(value, name) for name, value in changes.items()}
    source = replace(config.source, settings={**config.source.settings, **values})
    try:
        read(ConfigReader(source, config.framework, config.inherits))
    except (ConfigError, UnsupportedError):
        return ""
    return " ".join(setting("set", f"{name}={value}") for name, value in changes.items())


def _values(config: ConfigReader, only: Mapping[str, str], second: bool) -> Iterator[tuple[str, str]]:
    """The modelled value of each setting that has one; `second`: FSDP 2 is asked for."""
    strategy = "fsdp2" if second else config.lowercase(verl_rl.STRATEGY, default="fsdp")
    sharded = strategy if strategy == "fsdp2" else "fsdp"
    critic = verl_critic.CRITIC
    yield from {
        "model_engine": "dp",
        f"{verl_rl.ROLLOUT}name": "vllm",
        **dict.fromkeys((verl_rl.STRATEGY, verl_critic.STRATEGY, f"{verl_rl.REF}strategy"), sharded),
        f"{verl_rl.ACTOR}fsdp_config.strategy": sharded,
        verl_sequence.REFERENCE: str(config.integer(verl_sequence.OWN, default=1)),
        **dict.fromkeys((f"{verl_rl.MODEL}use_remove_padding", f"{critic}model.use_remove_padding"), "True"),
        **dict.fromkeys((f"{section}.enable" for section in verl_rl.REWARD_MODELS), "False"),
        **only,
    }.items()


def _off(config: ConfigReader, name: str) -> str:
    """The value that switches a setting off."""
    given = str(config.source.settings[name].value).lower()
    if given.replace(".", "").isdecimal():
        return "0"
    return "False" if given in (*TRUE, *FALSE) else "null"
