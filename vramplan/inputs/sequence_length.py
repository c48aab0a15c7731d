"""The length of a sample in tokens: what it is if the user says nothing, and how long it may be."""

from __future__ import annotations

from vramplan.errors import ConfigError, setting
from vramplan.inputs.job_values import DEFAULT_SEQUENCE_LENGTH
from vramplan.inputs.model_spec import ModelSpec

POSITION_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""Keys of a model's configuration that hold the longest sequence it was made for."""


def max_positions(spec: ModelSpec) -> int | None:
    """Tokens of the longest sequence that the model was made for; None if its configuration does not say."""
    text = spec.config.get("text_config") or spec.config
    lengths = (text.get(key) for key in POSITION_KEYS)
    return next((length for length in lengths if isinstance(length, int) and length > 0), None)


def default_sequence_length(positions: int | None) -> int:
    """Tokens of a sample if none are given, within a table of so many positions."""
    return DEFAULT_SEQUENCE_LENGTH if positions is None else min(DEFAULT_SEQUENCE_LENGTH, positions)


def check_sequence_length(sequence_length: int, positions: int | None, owner: str) -> None:
    """Refuse a sequence beyond a table of position embeddings.

    Raises:
        ConfigError: naming the limit; `owner` is the model or the part of it that has the table.
    """
    if positions is not None and sequence_length > positions:
        raise ConfigError(
            f"{setting('sequence_length', sequence_length)}: {owner} has a table of {positions} positions; longer"
            " sequences cannot run"
        )
