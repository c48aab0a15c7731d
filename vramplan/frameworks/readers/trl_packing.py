"""Rows of TRL's supervised fine-tuning: `packing` and `padding_free` (trl 0.12 to 1.16, trainer/sft_trainer.py)."""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.settings import ConfigReader

JOINS = "0.19"
"""The first version whose packing joins all rows of a micro-batch, by a `packing_strategy` other than wrapped."""
GIVES_POSITIONS = "0.23"
"""The first version since whose joined rows have position ids whatever the attention."""
STOPS_AT_LIMIT = "1.0"
"""The first version that stops at `padding_free` with a `max_length` that nothing enforces."""

NEEDS_FLASH = (
    "joins a micro-batch into one row, whose mask grows with the square of all its tokens; attn_implementation:"
    " flash_attention_2 needs none"
)
"""What samples that share a row need."""


def batch_fields(config: ConfigReader, job: dict[str, Any], version: str) -> dict[str, str]:
    """The job's `batches`; nothing for samples that are padded, and for rows that are cut out of joined texts.

    `padding_free`, and packing that keeps samples whole, join all samples of a micro-batch into one row with position
    ids and no mask. FlashAttention tells samples apart by these, so that one row needs what several do; SDPA and eager
    attention get a mask of the whole row (transformers 5.23, masking_utils.py).

    Raises:
        ConfigError: where TRL stops.
        UnsupportedError: for joined rows without position ids.
    """
    packs, joins = (config.boolean(name, default=False) for name in ("packing", "padding_free"))
    strategy = config.lowercase("packing_strategy", default="bfd")
    if joins and not packs and at_least(version, STOPS_AT_LIMIT) and not config.is_null("max_length"):
        raise ConfigError(
            f"{config.place('padding_free')}: TRL {version} stops at padding_free without packing unless max_length is"
            " null: set packing: true, or max_length: null and give the longest sample by --seq-len or --dataset"
        )
    if not joins and not (packs and at_least(version, JOINS) and strategy != "wrapped"):
        if packs:
            config.note("warning", "packing", "of this kind cuts rows out of joined samples, which see each other")
        return {}
    if job.get("attention") == "flash":
        return {"batches": "packed"}
    if at_least(version, JOINS) and not at_least(version, GIVES_POSITIONS):
        if job["micro_batch_size"] == 1:
            config.note("warning", "packing", "without attn_implementation: flash_attention_2 samples see each other")
            return {"batches": "unpadded"}
        raise config.unsupported(
            "padding_free" if joins else "packing",
            f"without FlashAttention: TRL {version} joins a micro-batch into one row in which samples see each other,"
            " which is not modelled; set attn_implementation: flash_attention_2, or per_device_train_batch_size: 1",
        )
    config.note(
        "warning",
        "padding_free" if joins else "packing",
        NEEDS_FLASH,
    )
    return {"batches": "flattened"}
