"""accelerate's launcher: its flags and its YAML (``accelerate launch --config_file``, 1.15: commands/launch.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.presets import preset_of
from vramplan.frameworks.readers import fsdp_config
from vramplan.frameworks.settings import TRUE, UNSET, ConfigValue, Note
from vramplan.frameworks.syntax.config_files import read_mapping
from vramplan.frameworks.syntax.lookup import beside
from vramplan.frameworks.syntax.shell import UNKNOWN

MODELLED_TYPES = ("NO", "MULTI_GPU", "DEEPSPEED", "FSDP")
"""Values of distributed_type that are read; others are refused."""


def launched(
    flags: Mapping[str, ConfigValue], folder: Path, program: Sequence[str], notes: list[Note]
) -> tuple[dict[str, ConfigValue], dict[str, ConfigValue]]:
    """(settings, environment) that the launcher passes to the script, the words of `program`; adds to the `notes`.

    Raises:
        ConfigError: for a file that does not exist.
        UnsupportedError: for a distributed_type that is not modelled.
    """
    options = dict(flags)
    file = options.pop("config_file", None)
    if file is not None:
        options = _in_file(file, folder, program, notes) | {
            name: value for name, value in options.items() if value.value != "all"
        }
    type_value = options.get("distributed_type", ConfigValue("MULTI_GPU", "accelerate"))
    distributed_type = "FSDP" if _is_on(options.get("use_fsdp")) else str(type_value.value).upper()
    if distributed_type not in MODELLED_TYPES:
        raise UnsupportedError(f"{type_value.place}: distributed_type: {distributed_type} is not modelled yet")
    parallel = options.get("parallelism_config")
    if parallel is not None and parallel.value not in UNSET and parallel.value != {}:
        raise UnsupportedError(f"{parallel.place}: is not modelled yet (context, sequence or tensor parallelism)")
    settings = {name: options[name] for name in ("num_machines",) if name in options}
    if distributed_type == "NO" and "num_processes" not in flags:
        settings["num_processes"] = ConfigValue(1, type_value.place)
    elif "num_processes" in options:
        settings["num_processes"] = options["num_processes"]
    deepspeed = _deepspeed(options, distributed_type == "DEEPSPEED" or _is_on(options.get("use_deepspeed")))
    if deepspeed is not None:
        settings["deepspeed"] = deepspeed
    if distributed_type == "FSDP":
        settings |= fsdp_config.launched(options)
    mixed_precision = options.get("mixed_precision")
    environment = {} if mixed_precision is None else {"ACCELERATE_MIXED_PRECISION": mixed_precision}
    if deepspeed is not None:
        environment["ACCELERATE_USE_DEEPSPEED"] = ConfigValue("true", deepspeed.place)
    gpu_ids = options.get("gpu_ids")
    if gpu_ids is not None and gpu_ids.value not in (*UNSET, "all"):
        environment["CUDA_VISIBLE_DEVICES"] = gpu_ids._replace(value=str(gpu_ids.value))
    return settings, environment


def _in_file(file: ConfigValue, folder: Path, program: Sequence[str], notes: list[Note]) -> dict[str, ConfigValue]:
    """The settings of the launcher's file; of the file that the program's project ships if it is not here."""
    path = beside(file.value, folder)
    if path is not None:
        return read_mapping(path)
    preset = preset_of(str(file.value), program=program, is_accelerate=True)
    if UNKNOWN in str(file.value):
        name = str(file.value).replace(UNKNOWN, "")
        raise ConfigError(
            f"{file.place}: {name}: which file this is is not known without a run; check the command itself, after --"
        )
    if preset is None:
        raise ConfigError(
            f"{file.place}: no file {file.value} here or beside the script; write the path that it has here"
        )
    notes.append(Note("warning", "config_file", preset.note(str(file.value)), file.place))
    return {name: ConfigValue(value, f"{preset.path}: {name}") for name, value in preset.settings.items()}


def _is_on(value: ConfigValue | None) -> bool:
    return value is not None and str(value.value).lower() in (*TRUE, "")  # a flag may have no value


def _deepspeed(options: Mapping[str, ConfigValue], is_on: bool) -> ConfigValue | None:
    """DeepSpeed's own configuration; the ZeRO stage is 2 by default."""
    if not is_on:
        return None
    section = options.get("deepspeed_config", ConfigValue({}, "accelerate"))
    nested: dict[str, Any] = section.value if isinstance(section.value, dict) else {}
    flag = options.get("deepspeed_config_file")
    file = flag or ConfigValue(nested.get("deepspeed_config_file"), section.place)
    if file.value not in UNSET:
        return file
    stage = options.get("zero_stage", ConfigValue(nested.get("zero_stage", 2), section.place))
    offloads = {}
    for name in ("offload_optimizer", "offload_param"):
        device = options.get(f"{name}_device", ConfigValue(nested.get(f"{name}_device", "none"), section.place))
        offloads[name] = {"device": device.value}
    return ConfigValue({"zero_optimization": {"stage": stage.value, **offloads}}, stage.place)
