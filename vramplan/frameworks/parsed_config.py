"""A configuration as a model, a job, a number of GPUs, and notes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from math import ceil
from typing import Any, Literal

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError
from vramplan.frameworks.gpu_groups import GpuGroup
from vramplan.frameworks.installed import installed_version
from vramplan.frameworks.readers.video_sampling import Sampling
from vramplan.frameworks.settings import FALSE, TRUE, ConfigReader, ConfigValue, Note, Spelling, says

KeyNames = str | Mapping[Any, str]
"""A key that takes the job's own value; or, for each value of the job, ``key value; key value``."""
CAST = ("dtype", "autocast")
"""Fields that a sharding engine sets by itself, whatever dtype keys the framework has."""


def _python(key: str, value: str) -> str:
    if value.lower() in (*TRUE, *FALSE) and not value.isdigit():
        value = str(value.lower() in TRUE)
    plain = value in ("True", "False") or value.startswith("torch.") or value.endswith(")")
    plain = plain or value.replace(".", "", 1).isdigit()
    return f"{key}={value if plain else json.dumps(value)}"


SPELLINGS: Mapping[Spelling, Callable[[str, str], str]] = {
    "yaml": lambda key, value: f"{key}: {value}",
    "flags": lambda key, value: f"--{key} {value}",
    "pairs": lambda key, value: f"{key}={value}",
    "python": _python,
}


@dataclass(slots=True)
class ParsedConfig:
    """What a framework's reader makes of one configuration."""

    framework: str
    """Its package's name."""
    version: str
    model: str
    job: dict[str, Any]
    """Fields of :class:`vramplan.Job`."""
    names: Mapping[str, KeyNames]
    """The framework's keys for fields of the job that a user may change."""
    notes: list[Note] = field(default_factory=list)
    task: str = "SFT"
    """The kind of training."""
    eval_batch_size: int | None = None
    """Samples in an evaluation's forward; None if none is run."""
    uses_peft_targets: bool = False
    """Whether PEFT chooses the layers that get adapters, by the model's type."""
    completion_length: int | None = None
    """Tokens of a completion, if the configuration limits it and not the prompt (GRPO)."""
    resizes_images: bool = True
    """Whether the framework applies caps on pixels to every model's images; else only processors that read them do."""
    compared_with_images: bool = True
    """Whether the framework's version of the trainer is the one whose runs with images were compared."""
    model_config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the model's own configuration that the script sets, such as dropouts."""
    video_sampling: Sampling = Sampling()
    """What the framework does to videos before the model's processor."""
    expandable: bool = False
    """Whether the framework sets expandable segments if the environment does not configure the allocator."""
    liger_types: frozenset[str] | None = None
    """Types of models that the framework uses Liger for; None: all that Liger knows."""
    spelling: Spelling = "yaml"
    """How its settings are written: ``key: value``, ``--key value``, ``key=value``, ``key="value"``."""
    rows: Literal["samples", "padded", "packed"] = "samples"
    """Rows of a batch: samples of their own lengths; samples padded to the limit; packed samples up to the limit."""
    drops_longer: bool = False
    """Whether samples over the limit are dropped instead of cut."""
    num_train_samples: Callable[[int], int] = int
    """Samples of a data set -> those that train, without the ones that are left out or held back for evaluation."""
    strategy_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Job settings implied by choosing a strategy in this framework, such as DeepSpeed's bucket sizes."""
    groups: tuple[GpuGroup, ...] = ()
    """Other groups of GPUs of the same run, which have to fit as well."""
    synonyms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys that are read for one another: names of the same setting in several versions."""
    settings: Mapping[str, ConfigValue] = field(default_factory=dict)
    """What the configuration itself holds, with places."""
    where: str = ""
    """Its path, with which places begin."""
    constructor: ConfigValue | None = None
    """In a Python script the call that makes the trainer's arguments: its name and place, if there is one alone."""
    job_with: Callable[[Mapping[str, str]], dict[str, Any]] = field(default=lambda _: {}, compare=False, repr=False)
    """Other values of its keys -> the fields of the job that is read then."""

    def words(self, update: Mapping[str, Any]) -> dict[str, str]:
        """Changes to the job as the framework's keys and values; those that it has no key for are left out."""
        settings: dict[str, str] = {}
        for name, value in update.items():
            if "strategy" in update and name in CAST:
                continue
            keys = self.names.get(name)
            pairs = f"{keys} {value}" if isinstance(keys, str) else (keys or {}).get(value)
            for pair in pairs.split("; ") if pairs is not None else ():
                key, _, text = pair.partition(" ")
                settings[key] = text
        return settings

    def say(self, update: Mapping[str, Any]) -> list[str]:
        """Changes to the job as lines of the configuration, without those that it holds already.

        If it holds all of them something else stands against them, and all are said.
        """
        words = self.words(update)
        lines = {key: value for key, value in words.items() if not self._holds(key, value)} or words
        return [SPELLINGS[self.spelling](key, value) for key, value in lines.items()]

    def _holds(self, key: str, value: str) -> bool:
        names = (key, *self.synonyms.get(key, ()))
        return any(says(self.settings[name].value, value) for name in names if name in self.settings)


def hold_back(held_back: float, most: int | None = None) -> Callable[[int], int]:
    """The `num_train_samples` of at most `most` samples, less those held back: a share, or from 1 on a number.

    A share is rounded up, as datasets' ``train_test_split`` does.

    >>> hold_back(0.1, 1000)(5001), hold_back(0.1)(25), hold_back(200)(1000)
    (900, 22, 800)
    """

    def num_train_samples(samples: int) -> int:
        samples = samples if most is None else min(samples, most)
        return max(1, samples - (int(held_back) if held_back >= 1 else ceil(held_back * samples)))

    return num_train_samples


def resolve_version(package: str, requested: str | None, newest: str) -> tuple[str, str]:
    """(version, its origin): the requested version, the installed one, or the newest that vramplan knows."""
    if requested is not None:
        return requested, "given"
    installed = installed_version(package)
    return (newest, "newest known") if installed is None else (installed, "installed")


def at_least(actual: str, required: str) -> bool:
    """Whether a version is no older than another."""
    return version_numbers(actual) >= version_numbers(required)


def version_numbers(version: str) -> list[int]:
    """The first three numbers of a version."""
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def allocator_settings(config: ConfigReader, expandable: bool) -> dict[str, bool]:
    """Fields of PyTorch's allocator: the environment's, or the framework's own if that does not set them."""
    text = config.variable("PYTORCH_ALLOC_CONF") or config.variable("PYTORCH_CUDA_ALLOC_CONF")
    is_on = expandable if text is None else "expandable_segments:true" in text.lower().replace(" ", "")
    return {"expandable_segments": True} if is_on else {}


def visible_gpus(config: ConfigReader, num_gpus: int) -> int:
    """GPUs that the command sees: CUDA_VISIBLE_DEVICES, else the machine's `num_gpus`."""
    devices = config.variable("CUDA_VISIBLE_DEVICES")
    if devices is None or "all" in devices:
        return num_gpus
    return max(1, len([device for device in devices.split(",") if device.strip()]))


def num_started_processes(config: ConfigReader, num_gpus: int) -> int | None:
    """Processes that NPROC_PER_NODE and NNODES start; None if NPROC_PER_NODE is not set.

    Raises:
        ConfigError: for a value that is not a number.
    """
    per_node = config.variable("NPROC_PER_NODE")
    nodes = config.variable("NNODES") or "1"
    if per_node is None:
        return None
    if per_node in ("gpu", "auto"):
        per_node = str(visible_gpus(config, num_gpus))
    for name, value in (("NPROC_PER_NODE", per_node), ("NNODES", nodes)):
        if not value.isdigit() or int(value) < 1:
            raise ConfigError(f"{name}={value}: expected a whole number of at least 1")
    devices = config.variable("CUDA_VISIBLE_DEVICES")
    if nodes == "1" and devices and int(per_node) > visible_gpus(config, int(per_node)):
        raise ConfigError(
            f"NPROC_PER_NODE={per_node} starts more processes than CUDA_VISIBLE_DEVICES={devices} shows GPUs"
        )
    return int(per_node) * int(nodes)


def num_nodes(config: ConfigReader, num_gpus: int) -> dict[str, int]:
    """The field of the number of nodes: the launcher's, where it is a number of several that have as many GPUs each."""
    nodes = launched_nodes(config)
    return {"num_nodes": nodes} if nodes > 1 and num_gpus % nodes == 0 else {}


def launched_nodes(config: ConfigReader) -> int:
    """The number of nodes by a launcher's flags or by NNODES; 1 if none is a number."""
    settings = config.source.settings
    named = [str(settings[name].value) for name in ("nnodes", "num_machines") if name in settings]
    return max((int(text) for text in (*named, config.variable("NNODES") or "") if text.isdecimal()), default=1)


def note_fp16_scaler(config: ConfigReader, job: dict[str, Any]) -> None:
    """Note fp16's gradient scaler over bf16 gradients; DeepSpeed and FSDP have scalers of their own."""
    trained_dtype = job.get("dtype") if job["method"] == "full" else job.get("lora_dtype")
    if (job.get("autocast"), trained_dtype, job.get("strategy", "ddp")) == ("fp16", "bf16", "ddp"):
        config.note(
            "warning",
            "fp16",
            "what trains is bf16: torch's gradient scaler long had no CUDA kernel for bf16 gradients (not implemented"
            " for 'BFloat16'), so the first step may stop whatever fits; bf16, or fp32 weights",
        )


def note_replicated_weights(config: ConfigReader, job: dict[str, Any]) -> None:
    """Note what each GPU still holds whole if a job runs on several."""
    if job.get("strategy") == "device_map":
        config.note(
            "warning",
            "",
            f"one process spreads the layers over {job['num_gpus']} GPUs (device_map), which work one after another: a"
            " step takes no more samples than on one GPU; a process for each GPU does, and holds the whole model",
        )
    several = job.get("num_gpus", 1) > 1
    is_replicated = job.get("strategy", "ddp") in ("ddp", "zero0", "zero1", "zero2")
    if several and is_replicated and job["method"] != "full":
        config.note(
            "warning",
            "",
            f"{job['num_gpus']} GPUs each hold the whole base model: more GPUs do not shrink it, only ZeRO-3 and FSDP"
            " do",
        )
    elif several and job.get("quant_storage") == "uint8" and job["strategy"] == "fsdp":
        config.note(
            "warning",
            "bnb_4bit_quant_storage",
            "not set, or uint8: accelerate leaves four-bit weights whole on every GPU; bfloat16 lets FSDP divide them",
        )
    elif several and job.get("strategy", "ddp") in ("ddp", "zero0"):
        strategy = "DDP" if job.get("strategy", "ddp") == "ddp" else "ZeRO-0"
        config.note(
            "warning", "", f"{job['num_gpus']} GPUs each hold the whole model, gradients and optimizer: {strategy}"
        )
