"""Rows of ms-swift's ``swift rlhf`` that hold several samples: ``padding_free`` and ``packing`` (3.12 and 4.6)."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from vramplan.errors import ConfigError, setting
from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.settings import ConfigReader

ROWS = ("padding_free", "packing")
"""Keys that make one row of a micro-batch."""
TAKE_ROWS = ("dpo", "kto")
"""Values of rlhf_type that take them; ms-swift stops at others (rlhf_args.py: _check_padding_free)."""
ENCODE_LATER = ("grpo", "gkd")
"""Those that take them too, and encode each batch on its own: packing makes no packs (4.6, sft.py: pre_process)."""

SPLIT = "sequence_parallel_size"
"""GPUs that each text is split over."""


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


def check_whole_texts(config: ConfigReader) -> None:
    """Refuse texts that are split over GPUs where no estimate comes near; DPO and GRPO are refused with one.

    Raises:
        UnsupportedError: if they are split.
    """
    if config.lowercase("rlhf_type", default="") not in ("dpo", "grpo"):
        without = f"{setting('set', f'{SPLIT}=')} estimates the run without it"
        config.require_off(SPLIT, 1, why=f"is not modelled yet; {without}")


def refuse_sequence_parallel(config: ConfigReader, model: str, job: Mapping[str, Any]) -> None:
    """Refuse texts that are split over GPUs, with the nearest estimate: texts as short as a GPU's part.

    Each GPU has logits of all tokens of its part, and all tokens of some heads in attention (4.6,
    rlhf_trainers/grpo_trainer.py: _get_logps_via_sp; rlhf_mixin.py: get_per_token_logps; sequence_parallel).

    Raises:
        UnsupportedError: if they are.
    """
    parts = config.integer(SPLIT, default=1)
    if parts == 1:
        return
    if "sequence_length" not in job:
        without = setting("set", f"{SPLIT}=")
        raise config.unsupported(SPLIT, f"is not modelled yet; {without} estimates whole texts on each GPU")
    part = {**job, "sequence_length": ceil(job["sequence_length"] / parts), "prompt_length": 1}
    raise config.unsupported(
        SPLIT,
        "is not modelled yet; nearest, texts as short as a GPU's part, without what GPUs exchange in attention, so that"
        f" a run needs more: {estimate_command(model, part)} --loss {job['loss']}",
    )
