"""Whether a run can move from any rung of a ladder to any other without running out of memory.

A micro-batch that fits from the beginning of a run may not fit behind a smaller one: what outlives a step lies in
between blocks that were cached for the smaller tensors, and PyTorch cannot give these back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from vramplan.adaptive.rung import Rung
from vramplan.analytic.architectures.lookup import is_described
from vramplan.analytic.mixed_batches import BatchShape
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job, with_batch
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.mixed_runs import MixedRuns

STEPS = 3
"""Optimizer steps on each rung, as many as it takes until a step allocates as the one before."""
ORDERS = 4
"""Orders of the rungs that are simulated: from the smallest to the largest, and some drawn by chance."""
VISITS = 12
"""Rungs in an order that is drawn."""


def with_safe_switches(spec: ModelSpec, job: Job, gpu: Gpu, rungs: Sequence[Rung]) -> tuple[Rung, ...] | None:
    """The rungs, those of the largest micro-batch lowered until simulated runs can switch between all of them.

    The cache is emptied before each switch, as :mod:`vramplan.adaptive.torch_loop` does. None if it is not known: the
    model is not simulated, or its samples differ in length.
    """
    if not is_described(spec) or job.lengths is not None:
        return None
    runs = MixedRuns(spec, with_batch(job, 1, 2), gpu)
    safe = list(rungs)
    while safe:
        micros = sorted({one.micro_batch_size for rung in safe for one in (rung, *rung.alternatives)})
        if len(micros) < 2 or all(_survives(runs, order) for order in _orders(micros)):
            break
        safe = [lower for rung in safe if (lower := _below(rung, micros[-1])) is not None]
    return tuple(safe)


def _below(rung: Rung, micro_batch_size: int) -> Rung | None:
    """The rung in smaller micro-batches than that; None if it has no such alternative."""
    if rung.micro_batch_size < micro_batch_size:
        return rung
    if not rung.alternatives:
        return None
    first, *others = rung.alternatives
    return replace(first, alternatives=tuple(others))


def _orders(micros: Sequence[int]) -> list[list[int]]:
    """Micro-batches in the order that a run visits them."""
    drawn = [Random(seed).choices(micros, k=VISITS) for seed in range(ORDERS - 1)]
    return [list(micros), *drawn]


def _survives(runs: MixedRuns, micros: Sequence[int]) -> bool:
    length = runs.job.sequence_length
    steps = [[BatchShape(micro, length)] * 2 for micro in micros for _ in range(STEPS)]
    return runs.survives(steps, empties_cache=True)
