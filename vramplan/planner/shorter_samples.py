"""Samples that fit where those at a configuration's limit do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vramplan.errors import VramplanError
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.inputs.job_values import GENERATING

if TYPE_CHECKING:
    from vramplan.planner.verdict import Verdict

HALVINGS = 5
"""How often a limit of samples that does not fit is halved, to say which samples do."""


def is_length_a_limit(config: ParsedConfig) -> bool:
    """Whether the configuration cuts samples at a length, which they may not reach."""
    return config.rows == "samples" and "sequence_length" in config.job and config.job.get("task") not in GENERATING


def shorter_length(limit: int, verdict_at: Callable[[int], Verdict]) -> int | None:
    """The longest of some halves of a limit that fits; None if none does."""
    for length in (limit >> halvings for halvings in range(1, HALVINGS + 1)):
        try:
            if length and verdict_at(length).fits:
                return length
        except VramplanError:  # shorter than its images, or than its prompt
            return None
    return None
