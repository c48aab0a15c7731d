"""What a configuration leaves open, and the need for each value that it may turn out to have.

Two things decide much and often stand in no file: the length of the longest sample, and the number of GPUs that a
launcher finds. Neither is guessed: the need is estimated for several values of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from vramplan.dataclass import dataclass
from vramplan.errors import VramplanError
from vramplan.planner.monotone_search import LENGTH_STEP, bisect_largest

if TYPE_CHECKING:
    from vramplan.planner.verdict import Verdict

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
"""Tokens of the longest sample that are estimated if a configuration does not limit them."""
SHORTER = (512, 256, 128, 64, 32)
"""The same where none of these fits."""
GPU_COUNTS = (1, 2, 4, 8)
"""GPUs that are estimated if a configuration divides the model over as many as there are."""
SEVERAL = (1, 2)
"""The same if each GPU holds the whole model: more than two need no more."""
SHARE = 32
"""The longest length that fits is searched to a part of it this small."""

Judge = Callable[..., "Verdict"]
"""(sequence length or None for the configuration's own, num_gpus=GPUs of the machine or None) -> verdict."""


@dataclass(frozen=True, slots=True)
class Case:
    """The need of a GPU for one value of what a configuration does not say."""

    sequence_length: int
    """Tokens of the longest sample."""
    num_gpus: int
    need_bytes: int
    fits: bool


def gpu_counts(read_job: Callable[[int], Mapping[str, Any]]) -> tuple[int, ...]:
    """Numbers of GPUs to estimate if the machine decides; empty if the configuration does.

    `read_job` returns the job on a machine with so many GPUs.
    """
    try:
        single, several = read_job(1), read_job(2)
    except VramplanError:  # it stops on one of them: the other is the answer, or its error
        return ()
    if several.get("num_gpus") == single.get("num_gpus") or several.get("strategy") == "device_map":
        return ()
    counts = SEVERAL if several.get("strategy", "ddp") in ("ddp", "zero0") else GPU_COUNTS
    parallel = single.get("vllm_tensor_parallel", 1)  # GPUs that share one vLLM
    return counts if parallel == 1 else tuple(dict.fromkeys(parallel * -(-count // parallel) for count in GPU_COUNTS))


def judge_cases(judge: Judge, longest: int | None, counts: tuple[int, ...]) -> Verdict:
    """The verdict of the best case that fits, else of the case that needs least, with every case beside it.

    Where each GPU holds the whole model and none fits, the verdict is that on one GPU.

    `longest` is the model's longest sequence if the length is open, else None; `counts` are numbers of GPUs, empty if
    that is not open.

    Raises:
        VramplanError: if it runs on none of these; the error on one GPU where each holds the whole model.
    """
    rows: list[list[Verdict]] = []
    error: VramplanError | None = None
    for count in counts or (0,):
        try:
            rows.append(_lengths(partial(judge, num_gpus=count or None), longest, len(counts) <= len(SEVERAL)))
        except VramplanError as stopped:  # some strategies run on several GPUs alone
            if error is None or counts != SEVERAL:
                error = stopped
    if not rows:
        assert error is not None
        raise error
    verdicts = [verdict for row in rows for verdict in row]
    fitting = [verdict for row in rows for verdict in reversed(row) if verdict.fits]
    usual = min(LENGTHS[0], longest or 0)
    candidates = [
        verdict
        for verdict in (rows[0] if counts == SEVERAL else verdicts)
        if verdict.estimate.job.sequence_length >= usual
    ]
    main = fitting[0] if fitting else min(candidates, key=lambda verdict: verdict.need_bytes)
    return replace(main, cases=tuple(map(_case, verdicts)))


def _lengths(judge: Callable[[int | None], Verdict], longest: int | None, search: bool) -> list[Verdict]:
    """Verdicts by length, shortest first, up to the first that does not fit; with the longest that fits if `search`."""
    if longest is None:
        return [judge(None)]
    verdicts = _from_usual(judge, longest, search)
    return verdicts if verdicts[0].fits else [*_shorter(judge, verdicts[0], search), *verdicts]


def _shorter(judge: Callable[[int | None], Verdict], first: Verdict, search: bool) -> list[Verdict]:
    """Verdicts of lengths below one that does not fit, shortest first: down to one that does, or all of them."""
    high = first.estimate.job.sequence_length
    verdicts: list[Verdict] = []
    for length in [length for length in SHORTER if length < high]:
        try:
            verdict = judge(length)
        except VramplanError:  # shorter than its images, or than its completion
            break
        if verdict.fits:
            most = bisect_largest(length, high, lambda tokens: judge(tokens).fits, step=LENGTH_STEP) if search else 0
            return [verdict, *([judge(most)] if most > length else []), *verdicts]
        high = length
        verdicts.insert(0, verdict)
    return verdicts


def _from_usual(judge: Callable[[int | None], Verdict], longest: int, search: bool) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for length in [*(length for length in LENGTHS if length < longest), longest]:
        try:
            verdict = judge(length)
        except VramplanError:  # shorter than its images
            if length == longest:
                raise
            continue
        if search and not verdict.fits and verdicts:
            low, high = verdicts[-1].estimate.job.sequence_length, length
            most = bisect_largest(low, high, lambda tokens: judge(tokens).fits, step=max(LENGTH_STEP, low // SHARE))
            verdicts += [judge(most)] if most > low else []
        verdicts.append(verdict)
        if not verdict.fits:
            break
    return verdicts


def _case(verdict: Verdict) -> Case:
    job = verdict.estimate.job
    return Case(job.sequence_length, job.num_gpus, verdict.need_bytes, verdict.fits)
