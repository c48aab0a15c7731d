"""Rows of ms-swift's ``swift rlhf`` that hold several samples: ``padding_free`` and ``packing`` (3.12 and 4.6)."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from vramplan.errors import ConfigError, setting
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers.config_text import Pairs
from vramplan.inputs.job import Job

ROWS = ("padding_free", "packing")
"""Keys that make one row of a micro-batch."""
TAKE_ROWS = ("dpo", "kto")
"""Values of rlhf_type that take them; ms-swift stops at others (rlhf_args.py: _check_padding_free)."""
ENCODE_LATER = ("grpo", "gkd")
"""Those that take them too, and encode each batch on its own: packing makes no packs (4.6, sft.py: pre_process)."""

SPLIT = "sequence_parallel_size"
"""GPUs that share each text."""
SHARED_SINCE = "3.12"
"""The first version whose code was read."""
NOT_IN_PLACE = "4.6"
"""The first version whose gradients of chunks are not written over the logits (sequence_parallel/utils.py)."""
CHUNK = "CELOSS_PARALLEL_SIZE"
"""The environment variable with the tokens whose cross-entropy is computed at a time, where GPUs share texts."""


def makes_packs(config: ConfigReader) -> bool:
    """Whether ``packing`` joins samples up to a length, and not those of a micro-batch alone."""
    later = config.lowercase("rlhf_type", default="") in ENCODE_LATER
    return config.boolean("packing", default=False) and not later


def row_field(config: ConfigReader) -> dict[str, str]:
    """Samples of a micro-batch in one row, with ``padding_free`` or ``packing``, where each batch is encoded later."""
    if all(config.is_off(name) for name in ROWS):
        return {"batches": "padded"}
    config.read_keys |= {"packing_length", "packing_num_proc", "packing_strategy"}
    return {"batches": "packed"}


def rows_of_pairs(config: ConfigReader, job: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of a micro-batch, each of a pair or an answer, or all as one (template/base.py: packing_row).

    A pack holds at most packing_length tokens of whole pairs, or one pair alone (dataset/packing.py).

    Raises:
        UnsupportedError: for packs of answers for KTO, whose share of the tokens the data decides.
    """
    if all(config.is_off(name) for name in ROWS):
        return {"batches": "padded"}
    if config.is_off("packing"):
        return {"batches": "packed"}
    longest = config.integer("max_length", default=0, least=0) if config.has("max_length") else None
    pack = job.get("sequence_length")
    if longest is None:
        raise config.unsupported(
            "packing", "without max_length is not modelled: a pair alone may be longer than a pack"
        )
    if config.lowercase("rlhf_type", default="dpo") == "kto" and (pack or longest) > longest:
        raise config.unsupported(
            "packing_length",
            "above max_length with rlhf_type kto is not modelled: the data decides how much of a pack is scored; set"
            f" packing_length={longest}",
        )
    config.note(
        "warning",
        "packing",
        f"a pack has a pair of two answers of max_length, {2 * longest:,} tokens, or packing_length of shorter ones",
    )
    return {"batches": "packed", "sequence_length": max(longest, ceil((pack or longest) / 2))}


def refuse_rows(config: ConfigReader, what: str) -> None:
    """Refuse rows of several samples where ms-swift stops at them.

    Raises:
        ConfigError: if there are some.
    """
    for name in ROWS:
        if not config.is_off(name):
            raise ConfigError(f"{config.place(name)}: {name}: ms-swift stops at it with {what}; set it to false")


def shared_fields(config: ConfigReader, version: str, num_gpus: int, computes_cross_entropy: bool) -> dict[str, Any]:
    """GPUs that share the tokens of each text (sequence_parallel/sequence_parallel.py: _init_device_mesh).

    Raises:
        ConfigError: for a number that does not divide the GPUs.
        UnsupportedError: for a version that was not read.
    """
    gpus = config.integer(SPLIT, default=1)
    if gpus == 1:
        return {}
    if not at_least(version, SHARED_SINCE):
        newer = setting("framework_version", SHARED_SINCE)
        raise config.unsupported(SPLIT, f"of versions before {SHARED_SINCE} is not modelled; nearest: {newer}")
    if num_gpus % gpus:
        nearest = max(size for size in range(1, min(gpus, num_gpus) + 1) if num_gpus % size == 0)
        raise ConfigError(
            f"{config.place(SPLIT)}: {gpus} does not divide {num_gpus} GPUs: ms-swift stops at that; give {nearest}"
        )
    chunk = (config.variable(CHUNK) or "0") if computes_cross_entropy else "0"
    own: dict[str, Any] = {"sequence_parallel": gpus}
    if chunk.isdecimal() and int(chunk):
        own["cross_entropy_chunk"] = int(chunk)
        own |= {} if at_least(version, NOT_IN_PLACE) else {"chunks_in_place": True}
    return {"swift": own}


def shared_pairs(job: Job) -> Pairs:
    """GPUs that share the tokens of each text, for a command: GRPO's micro-batches are those of one of them."""
    gpus = job.swift.sequence_parallel
    if gpus == 1:
        return {}
    names = ("gradient_accumulation_steps", "steps_per_generation") if job.task == "grpo" else ()
    steps = {name: value // gpus for name in names if (value := getattr(job, name)) is not None}
    return {SPLIT: gpus, **steps}


def shared_variables(job: Job) -> dict[str, str]:
    """The variable of its cross-entropy, if it is computed in chunks."""
    chunk = job.swift.cross_entropy_chunk
    return {} if chunk is None else {CHUNK: str(chunk)}


def refuse_shared(config: ConfigReader) -> None:
    """Refuse GPUs that share texts where that is not modelled.

    Raises:
        UnsupportedError: if they do.
    """
    without = setting("set", f"{SPLIT}=")
    config.require_off(
        SPLIT, 1, why=f"is not modelled yet here; {without} estimates the run without it, which needs more"
    )
