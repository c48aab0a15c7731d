"""Lengths of samples, however they are given."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from vramplan.errors import ConfigError, setting
from vramplan.inputs.job import MAX_COUNT, Job

SAMPLES = 64
"""That a range is spread over."""
MOST_SAMPLES = 1 << 14
MICRO_STEPS = 48
"""Micro-batches of other lengths before the longest; hundreds cache a tenth more, of 4,096 tokens half as much."""


def lengths_of(given: Any) -> tuple[int, ...]:
    """Tokens of each sample: "128-2048", which is spread evenly, "300,1200,2048", or a list.

    Raises:
        ConfigError: for something else.
    """
    if isinstance(given, str):
        found = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", given)
        if found is not None and 0 < int(found[1]) < int(found[2]) <= MAX_COUNT:
            return even_lengths(int(found[1]), int(found[2]))
        words = given.split(",")
        given = [int(one) for one in words] if all(one.strip().isdecimal() for one in words) else ()
    if not isinstance(given, (list, tuple)) or not 0 < len(given) <= MOST_SAMPLES:
        given = ()
    if not given or not all(type(one) is int and 0 < one <= MAX_COUNT for one in given):
        raise ConfigError(
            f"{setting('lengths')}: expected tokens from the shortest to the longest, 128-2048, or of each: 300,1200"
        )
    return tuple(given)


def even_lengths(shortest: int, longest: int) -> tuple[int, ...]:
    """Lengths drawn evenly between two, the same each time, and the longest."""
    drawn = Random(SAMPLES)
    return (*(drawn.randint(shortest, longest) for _ in range(SAMPLES - 1)), longest)


def batch_lengths(job: Job) -> list[int]:
    """Tokens of the longest sample in each micro-batch, the longest of all last; samples come in their order, again."""
    assert job.lengths is not None
    cut, size = [min(one, job.sequence_length) for one in job.lengths], job.micro_batch_size
    batches = ([cut[(i * size + j) % len(cut)] for j in range(min(size, len(cut)))] for i in range(MICRO_STEPS))
    return [*(max(batch) for batch in batches), job.sequence_length]
