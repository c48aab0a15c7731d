"""The forwards of ``generate`` as allocations and frees: a prompt, then one token at a time.

Mirrors transformers 5.23: generation/utils.py (_prefill, _sample), cache_utils.py (DynamicCache).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from vramplan.analytic.cached_forward import CachedForward, simulate_forward
from vramplan.analytic.layer_folding import FoldPlan, Unfolded, unfold
from vramplan.analytic.step_inputs import StepSpec
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.memory.generation import GenerationRun
from vramplan.memory.timeline import rounded_bytes

MAX_STEPS = 2048
"""Forwards of one token that are simulated; of more, each stands for several, and the cache grows by as many tokens."""


def decode_job(job: Job) -> Job:
    """The forward of one further token; images were in the prompt."""
    return job.model_copy(update={"sequence_length": 1, "images": 0, "videos": 0})


def unfolded_of(forward: CachedForward, plan: FoldPlan) -> Unfolded:
    """The forward of all layers, without small tensors inside of them."""
    return unfold(forward.record, plan, [one.num_bytes for one in forward.record.storages], brief=True)


def decode(
    run: GenerationRun, setting: StepSpec, plan: FoldPlan, gpu: Gpu, prompt: int, steps: int, stride: int
) -> CachedForward:
    """Record the forwards of one token each, simulated at a few lengths of the cache and scaled between them.

    Returns the last.
    """
    longest = prompt + steps - 1
    assert setting.architecture.decoder is not None
    window = setting.architecture.decoder.window(setting.config) or 0
    lengths = sorted({prompt, longest, *(range(window - 1, window) if prompt < window - 1 < longest else ())})
    return _forwards(run, lambda length: simulate_forward(setting, length), plan, gpu, lengths, stride)


def decode_without_cache(
    run: GenerationRun, setting: StepSpec, plan: FoldPlan, gpu: Gpu, prompt: int, steps: int, stride: int
) -> None:
    """Record the forwards of all tokens so far, each by one token longer (``use_cache=False``)."""

    def simulated(length: int) -> CachedForward:
        job = setting.job.model_copy(update={"sequence_length": length})
        return simulate_forward(replace(setting, job=job), 0, caches=False)

    _forwards(run, simulated, plan, gpu, sorted({prompt, prompt + steps - 1}), stride)


def _forwards(
    run: GenerationRun,
    simulated: Callable[[int], CachedForward],
    plan: FoldPlan,
    gpu: Gpu,
    lengths: Sequence[int],
    stride: int,
) -> CachedForward:
    """Record a forward at each length between the first and the last, or at some; returns the last."""
    forwards = [simulated(length) for length in lengths]
    unfolded = unfolded_of(forwards[-1], plan)
    sizes = [[one.on(gpu).num_bytes for one in forward.record.storages] for forward in forwards]
    cached = forwards[-1].cached
    last = forwards[-1].record
    alike = all((one.record.events, one.record.sections) == (last.events, last.sections) for one in forwards)
    grows = [number for number, of in enumerate(zip(*sizes, strict=True)) if len({*of}) > 1] if alike else []
    growing = [[at[number] for number in grows] for at in sizes]
    kinds = run.add(rounded_bytes(sizes[0] if alike else sizes[-1]), cached.__contains__)
    for length in sorted({*range(lengths[0], lengths[-1], stride), lengths[-1]}):
        at = rounded_bytes(between(lengths, growing, length))
        for number, kind in zip(grows, run.add(at, lambda place: grows[place] in cached), strict=True):
            kinds[number] = kind
        run.forward(unfolded.events, unfolded.source, kinds, cached)
    return forwards[-1]


def between(lengths: Sequence[int], sizes: Sequence[Sequence[int]], length: int) -> Sequence[int]:
    """Sizes at a length, on the lines between those at `lengths`, rounded up.

    >>> between([10, 20], [[100, 7], [200, 7]], 13)
    [130, 7]
    """
    end = bisect_left(lengths, length)
    if lengths[end] == length:
        return sizes[end]
    low, high = lengths[end - 1], lengths[end]
    share, span = length - low, high - low
    return [a if a == b else a - (a - b) * share // span for a, b in zip(sizes[end - 1], sizes[end], strict=True)]
