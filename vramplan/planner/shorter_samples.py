"""Samples that fit where those at a configuration's limit do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from vramplan.errors import VramplanError
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.inputs.job_values import GENERATING

if TYPE_CHECKING:
    from vramplan.planner.verdict import Verdict

HALVINGS = 5
"""How often a limit of samples that does not fit is halved, to say which samples do."""


def is_length_a_limit(config: ParsedConfig) -> bool:
    """Whether the configuration cuts samples, or prompts before completions, at a length that they may not reach."""
    job = config.job
    if config.rows != "samples" or "sequence_length" not in job:
        return False
    return job.get("task") not in GENERATING or (job.get("prompt_length") or 1) > 1


def completion_length(job: Mapping[str, Any]) -> int:
    """Tokens that are generated behind a prompt, which no data makes fewer; 0 for samples that are there already."""
    prompt = job.get("prompt_length") or 1
    return int(job["sequence_length"] - prompt) if job.get("task") in GENERATING and prompt > 1 else 0


def with_length(job: Mapping[str, Any], length: int) -> dict[str, int]:
    """Fields of a job for samples of so many tokens; of a prompt with its completion the prompt has fewer or more."""
    completion = completion_length(job)
    if not completion or length <= completion:
        return {"sequence_length": length}
    return {"sequence_length": length, "prompt_length": length - completion}


def shorter_length(job: Mapping[str, Any], verdict_at: Callable[[int], Verdict]) -> int | None:
    """The longest of some halves of a limit that fits, with the completion behind it; None if none does."""
    completion = completion_length(job)
    limit = int(job["sequence_length"]) - completion
    for part in (limit >> halvings for halvings in range(1, HALVINGS + 1)):
        length = part + completion
        try:
            if part and verdict_at(length).fits:
                return length
        except VramplanError:  # shorter than its images, or than its prompt
            return None
    return None
