"""Lengths of samples from a range, a list or text."""

from __future__ import annotations

import re
from typing import Any

from vramplan.errors import ConfigError, setting
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import MAX_COUNT
from vramplan.units import in_digits

NUM_SAMPLES = 64
"""Number of lengths drawn from a range."""
MAX_SAMPLES = 1 << 14
MICRO_STEPS = 48
"""Number of micro-batches of other lengths before the longest; hundreds would cache a tenth more, and half as much more
for samples of up to 4,096 tokens."""


def lengths_of(value: Any) -> tuple[int, ...]:
    """Tokens of each sample from a range "128-2048", which gives uniform lengths, from "300,1200,2048", or from a list.

    Raises:
        ConfigError: for another value.
    """
    if isinstance(value, str):
        value = in_digits(value, 1024)
        match = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", value)
        if match is not None and 0 < int(match[1]) < int(match[2]) <= MAX_COUNT:
            return even_lengths(int(match[1]), int(match[2]))
        words = value.split(",")
        value = [int(word) for word in words] if all(word.strip().isdecimal() for word in words) else ()
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= MAX_SAMPLES:
        value = ()
    if not value or not all(type(length) is int and 0 < length <= MAX_COUNT for length in value):
        raise ConfigError(
            f"{setting('lengths')}: expected tokens from the shortest to the longest, 128-2048, or of each: 300,1200"
        )
    return tuple(value)


def even_lengths(shortest: int, longest: int) -> tuple[int, ...]:
    """Uniformly drawn lengths from `shortest` to `longest`, the longest last; the same on every call."""
    from random import Random

    draws = Random(NUM_SAMPLES)
    return (*(draws.randint(shortest, longest) for _ in range(NUM_SAMPLES - 1)), longest)


def step_lengths(job: Job) -> list[list[int]]:
    """The same by optimizer step: as many micro-batches as the job accumulates, and a last step that the longest ends.

    The last step has two micro-batches at most: from the second on each finds the gradients of those before it.
    """
    (*others, longest), accumulated = batch_lengths(job), job.gradient_accumulation_steps
    steps = [others[number : number + accumulated] for number in range(0, len(others), accumulated)]
    return [*steps, [others[0], longest][-min(2, accumulated) :]]


def batch_lengths(job: Job) -> list[int]:
    """Tokens of the longest sample in each micro-batch, the longest of all last; samples repeat in their order."""
    assert job.lengths is not None
    lengths, size = [min(length, job.sequence_length) for length in job.lengths], job.micro_batch_size
    batches = (
        [lengths[(i * size + j) % len(lengths)] for j in range(min(size, len(lengths)))] for i in range(MICRO_STEPS)
    )
    return [*(max(batch) for batch in batches), job.sequence_length]
