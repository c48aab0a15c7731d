"""accelerate's launcher: its flags and its YAML (``accelerate launch --config_file``, 1.15: commands/launch.py)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.readers import fsdp_config
from vramplan.frameworks.settings import TRUE, UNSET, ConfigValue
from vramplan.frameworks.syntax.config_files import beside, read_mapping

SEVERAL = ("NO", "MULTI_GPU", "DEEPSPEED", "FSDP")
"""Kinds of distribution that are read; the others are refused by name."""


def launched(told: Mapping[str, ConfigValue], folder: Path) -> tuple[dict[str, ConfigValue], dict[str, ConfigValue]]:
    """(settings, environment) that the launcher gives the script.

    Raises:
        ConfigError: for a file that is not there.
        UnsupportedError: for what is not modelled.
    """
    found = dict(told)
    file = found.pop("config_file", None)
    if file is not None:
        path = beside(file.value, folder)
        if path is None:
            raise ConfigError(f"{file.place}: no file {file.value}")
        found = read_mapping(path) | {name: one for name, one in found.items() if one.value != "all"}
    kind = found.get("distributed_type", ConfigValue("MULTI_GPU", "accelerate"))
    named = "FSDP" if _is_on(found.get("use_fsdp")) else str(kind.value).upper()
    if named not in SEVERAL:
        raise UnsupportedError(f"{kind.place}: distributed_type: {named} is not modelled yet")
    settings: dict[str, ConfigValue] = {}
    if named == "NO" and "num_processes" not in told:
        settings["num_processes"] = ConfigValue(1, kind.place)
    elif "num_processes" in found:
        settings["num_processes"] = found["num_processes"]
    if "num_machines" in found and file is None:
        settings["nnodes"] = found["num_machines"]
    deepspeed = _deepspeed(found, named == "DEEPSPEED" or _is_on(found.get("use_deepspeed")))
    if deepspeed is not None:
        settings["deepspeed"] = deepspeed
    if named == "FSDP":
        settings |= fsdp_config.launched(found)
    half = found.get("mixed_precision")
    environment = {} if half is None else {"ACCELERATE_MIXED_PRECISION": half}
    return settings, environment


def _is_on(found: ConfigValue | None) -> bool:
    return found is not None and str(found.value).lower() in (*TRUE, "")  # a flag stands without a value


def _deepspeed(found: Mapping[str, ConfigValue], wanted: bool) -> ConfigValue | None:
    """DeepSpeed's own configuration, in its words; without a stage accelerate takes the second."""
    if not wanted:
        return None
    part = found.get("deepspeed_config", ConfigValue({}, "accelerate"))
    inner: dict[str, Any] = part.value if isinstance(part.value, dict) else {}
    file = inner.get("deepspeed_config_file")
    if file not in UNSET:
        return ConfigValue(file, part.place)
    stage = found.get("zero_stage", ConfigValue(inner.get("zero_stage", 2), part.place))
    offloads = {}
    for name in ("offload_optimizer", "offload_param"):
        said = found.get(f"{name}_device", ConfigValue(inner.get(f"{name}_device", "none"), part.place))
        offloads[name] = {"device": said.value}
    return ConfigValue({"zero_optimization": {"stage": stage.value, **offloads}}, stage.place)
