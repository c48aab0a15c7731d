"""What a configuration comes to: a model, a job, cards, and what a reader should know."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from math import ceil
from typing import Any, Literal

from vramplan.errors import ConfigError
from vramplan.frameworks.readers.video_sampling import Sampling
from vramplan.frameworks.settings import FALSE, TRUE, ConfigReader, Note, Spelling

Words = str | Mapping[Any, str]
"""A key whose value is the job's own; or, for each value of the job, ``key value; key value``."""


CAST = ("dtype", "autocast")
"""What a sharding engine casts by itself, however the framework spells its dtypes."""


def _python(key: str, value: str) -> str:
    if value.lower() in (*TRUE, *FALSE) and not value.isdigit():
        value = str(value.lower() in TRUE)
    plain = value in ("True", "False") or value.startswith("torch.") or value.endswith(")")
    plain = plain or value.replace(".", "", 1).isdigit()
    return f"{key}={value if plain else json.dumps(value)}"


SPELT: Mapping[Spelling, Callable[[str, str], str]] = {
    "yaml": lambda key, value: f"{key}: {value}",
    "flags": lambda key, value: f"--{key} {value}",
    "python": _python,
}


@dataclass(slots=True)
class ParsedConfig:
    """One configuration, understood."""

    framework: str
    """Its package's name."""
    version: str
    model: str
    job: dict[str, Any]
    """Fields of :class:`vramplan.Job`."""
    names: Mapping[str, Words]
    """What the framework calls those that a user may want to change."""
    notes: list[Note] = field(default_factory=list)
    eval_batch_size: int | None = None
    """Samples in an evaluation's forward; None where none is run."""
    caps_resize: bool = True
    """Whether caps on pixels hold for every model, applied before its processor; else only where that reads them."""
    sampling: Sampling = Sampling()
    """What becomes of videos before their processor sees them."""
    expandable: bool = False
    """Whether the framework switches expandable segments on where the environment says nothing of the allocator."""
    spelling: Spelling = "yaml"
    """How its settings are written: ``key: value``, ``--key value``, ``key=value``."""

    rows: Literal["samples", "padded", "packed"] = "samples"
    """What a batch is made of: samples as long as they are; each padded to the limit; rows packed full of them."""
    drops_longer: bool = False
    """Whether samples over the limit are left out, not cut."""
    taken: Callable[[int], int] = int
    """How many of a data set's samples train: some are left out, or held back for an evaluation."""
    brings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What comes with a strategy that the framework's words switch on, such as DeepSpeed's buckets; none: auto's."""
    synonyms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys that are read for one another: what another version calls the same."""

    def words(self, update: Mapping[str, Any]) -> dict[str, str]:
        """Changes to the job as the framework's keys and values; those that it has no word for are left out."""
        said: dict[str, str] = {}
        for field_, value in update.items():
            if "strategy" in update and field_ in CAST:
                continue
            words = self.names.get(field_)
            pair = f"{words} {value}" if isinstance(words, str) else (words or {}).get(value)
            for one in pair.split("; ") if pair is not None else ():
                key, _, rest = one.partition(" ")
                said[key] = rest
        return said

    def say(self, update: Mapping[str, Any]) -> list[str]:
        """The same as lines."""
        return [SPELT[self.spelling](key, value) for key, value in self.words(update).items()]


def without(held: float, most: int | None = None) -> Callable[[int], int]:
    """At most so many samples, less those that are held back: a share, or from 1 on a number.

    A share is rounded up, as datasets' ``train_test_split`` does.

    >>> without(0.1, 1000)(5001), without(0.1)(25), without(200)(1000)
    (900, 22, 800)
    """

    def taken(samples: int) -> int:
        samples = samples if most is None else min(samples, most)
        return max(1, samples - (int(held) if held >= 1 else ceil(held * samples)))

    return taken


def settle(package: str, asked: str | None, newest: str) -> tuple[str, str]:
    """(version, where that comes from): what was asked for, what is installed, or the newest that is known."""
    if asked is not None:
        return asked, "given"
    try:
        return version(package), "installed"
    except PackageNotFoundError:
        return newest, "newest known"


def at_least(have: str, wanted: str) -> bool:
    """Whether a version is no older than another."""
    return _parts(have) >= _parts(wanted)


def _parts(version: str) -> list[int]:
    return [int(one) for one in re.findall(r"\d+", version)[:3]]


def allocator(keys: ConfigReader, expandable: bool) -> dict[str, bool]:
    """Torch's allocator settings: the environment's, or what the framework sets where that is silent."""
    said = keys.variable("PYTORCH_ALLOC_CONF") or keys.variable("PYTORCH_CUDA_ALLOC_CONF")
    on = expandable if said is None else "expandable_segments:true" in said.lower().replace(" ", "")
    return {"expandable_segments": True} if on else {}


def visible_cards(keys: ConfigReader, cards: int) -> int:
    """Cards that the command sees: CUDA_VISIBLE_DEVICES, else the box's `cards`."""
    said = keys.variable("CUDA_VISIBLE_DEVICES")
    if said is None or "all" in said:
        return cards
    return max(1, len([one for one in said.split(",") if one.strip()]))


def started(keys: ConfigReader, cards: int) -> int | None:
    """Processes that NPROC_PER_NODE and NNODES start; None where the first is not set.

    Raises:
        ConfigError: for something else than numbers.
    """
    said = keys.variable("NPROC_PER_NODE")
    nodes = keys.variable("NNODES") or "1"
    if said is None:
        return None
    if said in ("gpu", "auto"):
        said = str(visible_cards(keys, cards))
    for name, value in (("NPROC_PER_NODE", said), ("NNODES", nodes)):
        if not value.isdigit() or int(value) < 1:
            raise ConfigError(f"{name}={value}: expected a whole number of at least 1")
    if nodes == "1" and keys.variable("CUDA_VISIBLE_DEVICES") and int(said) > visible_cards(keys, int(said)):
        seen = keys.variable("CUDA_VISIBLE_DEVICES")
        raise ConfigError(f"NPROC_PER_NODE={said} starts more processes than CUDA_VISIBLE_DEVICES={seen} shows cards")
    return int(said) * int(nodes)


def tell_frozen(keys: ConfigReader) -> None:
    """Say where a script picks itself what trains."""
    keys.asked.add("requires_grad")
    if "requires_grad" in keys.source.settings:
        keys.note(
            "warning",
            "requires_grad",
            "is set by hand, which is not followed: what trains is as said above; `estimate --vision`, `--projector`"
            " and modules_to_save say it otherwise",
        )


def tell_scaler(keys: ConfigReader, job: dict[str, Any]) -> None:
    """Say where fp16's gradient scaler meets bf16 gradients; engines that divide the work have scalers of their own."""
    trains = job.get("dtype") if job["method"] == "full" else job.get("lora_dtype")
    if (job.get("autocast"), trains, job.get("strategy", "ddp")) == ("fp16", "bf16", "ddp"):
        keys.note(
            "warning",
            "fp16",
            "what trains is bf16: torch's gradient scaler long had no CUDA kernel for bf16 gradients (not implemented"
            " for 'BFloat16'), so the first step may stop whatever fits; bf16, or fp32 weights",
        )


def tell_sharing(keys: ConfigReader, job: dict[str, Any]) -> None:
    """Say what more cards do not do."""
    if job.get("strategy") == "device_map":
        keys.note(
            "warning",
            "",
            f"one process spreads the layers over {job['num_gpus']} cards (device_map), which work one after another: a"
            " step takes no more samples than on one card; a process for each card does, and holds the whole model",
        )
    several, whole = job.get("num_gpus", 1) > 1, job.get("strategy", "ddp") in ("ddp", "zero0", "zero1", "zero2")
    if several and whole and job["method"] != "full":
        keys.note(
            "warning",
            "",
            f"{job['num_gpus']} cards each hold the whole base model: more cards do not shrink it, only ZeRO-3 and FSDP"
            " do",
        )
    elif several and job.get("quant_storage") == "uint8" and job["strategy"] == "fsdp":
        keys.note(
            "warning",
            "bnb_4bit_quant_storage",
            "not set, or uint8: accelerate leaves four-bit weights whole on every card; bfloat16 lets FSDP divide them",
        )
    elif several and job.get("strategy", "ddp") in ("ddp", "zero0"):
        said = "DDP" if job.get("strategy", "ddp") == "ddp" else "ZeRO-0"
        keys.note("warning", "", f"{job['num_gpus']} cards each hold the whole model, gradients and optimizer: {said}")
