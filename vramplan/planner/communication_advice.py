"""What lessens the time that GPUs wait for each other: more accumulation, other settings of the strategy."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.inputs.job import Job
from vramplan.memory.estimate import Estimate
from vramplan.planner.search_result import CommunicationAdvice, Gain
from vramplan.step_time.step_time import StepTime

LEAST_SHARE = 0.02
"""Share of a step's time below which communication, or what more accumulation gains, is not worth a word."""


@dataclass(frozen=True, slots=True)
class Change:
    """Settings of a job that may lessen communication."""

    update: dict[str, Any]
    """Fields of the job with their new values."""
    text: str
    """What it does, in words."""


def changes(job: Job) -> list[Change]:
    """Settings to estimate: those that communicate less, or beside computation, under the job's strategy."""
    if job.processes == 1:
        return []
    found = []
    if job.strategy in ("zero2", "zero3"):
        less = {"zero2": "zero1", "zero3": "zero2"}[job.strategy]
        text = {
            "zero2": "ZeRO-1 reduces gradients once per optimizer step, ZeRO-2 in every micro-step",
            "zero3": "ZeRO-2 does not gather weights in every micro-step",
        }[job.strategy]
        offload = {"offload": "optimizer"} if job.offload == "all" else {}
        keeps = (
            less == "zero2" or job.offload == "none"
        )  # stage 1 overlaps without offload alone (inputs/validation.py)
        zero = {} if keeps else {"zero": job.zero.model_copy(update={"overlap_comm": False})}
        found.append(Change({"strategy": less, **offload, **zero}, text))
    can_overlap = job.strategy in ("zero2", "zero3") or (job.strategy == "zero1" and job.offload == "none")
    if can_overlap and not job.zero.overlap_comm:
        zero_settings = job.zero.model_copy(update={"overlap_comm": True})
        found.append(Change({"zero": zero_settings}, "overlap_comm runs communication beside computation"))
    if job.strategy == "fsdp":
        fsdp = job.fsdp
        options: list[tuple[dict[str, Any], str]] = []
        if fsdp.version == 1 and fsdp.backward_prefetch == "none":
            options.append(({"backward_prefetch": "pre"}, "BACKWARD_PRE gathers the next layer beside a backward"))
        if fsdp.reshard_after_forward:
            text = "without reshard_after_forward, weights are gathered once in a micro-step instead of twice"
            options.append(({"reshard_after_forward": False}, text))
        if fsdp.version == 1 and fsdp.replicas < job.num_nodes:
            text = "HYBRID_SHARD gathers weights within each node alone"
            options.append(({"replicas": job.num_nodes}, text))
        found += [Change({"fsdp": fsdp.model_copy(update=update)}, text) for update, text in options]
    return found


def enough_accumulation(now: StepTime, doubled: StepTime) -> int:
    """The accumulation past which less than 2 % of a sample's time is left to gain.

    The time of a step grows by as much with each micro-step (the first, which adds to no gradients, may be a little
    shorter); what else it has is shared by them all.

    Args:
        now: The time at one accumulation.
        doubled: The time at twice as much.
    """
    steps = now.gradient_accumulation_steps
    each = (doubled.seconds - now.seconds) / steps
    once = max(0.0, now.seconds - steps * each)
    return max(1, ceil(once / (LEAST_SHARE * each)))


def advise(
    now: Estimate, doubled: Estimate, tried: Iterable[tuple[Change, Estimate]] = ()
) -> CommunicationAdvice | None:
    """What communication costs, and what lessens it; None if it is less than 2 % of a step, or not known.

    Args:
        now: The estimate of the job.
        doubled: The same at twice the accumulation.
        tried: Estimates of the job with each of its `changes`, at the same batch.
    """
    if now.step_time is None or doubled.step_time is None or not is_worth_advice(now):
        return None
    share, at_twice = communication_share(now.step_time), communication_share(doubled.step_time)
    gains = [
        Gain(change.text, per_sample(estimate), communication_share(estimate.step_time), estimate.device_total_bytes)
        for change, estimate in tried
        if estimate.fits and estimate.step_time is not None and per_sample(estimate) < per_sample(now)
    ]
    gains.sort(key=lambda gain: gain.seconds_per_sample)
    steps, enough = now.gradient_accumulation_steps, enough_accumulation(now.step_time, doubled.step_time)
    gains_little = f"more than {enough} gains less than {LEAST_SHARE:.0%}" if enough > steps else "more gains nothing"
    if enough <= steps and at_twice < 0.9 * share:
        gains_little = f"more gains less than {LEAST_SHARE:.0%}"
    shares = f"{share:.0%} of a step at accumulation {steps}, {at_twice:.0%} at {2 * steps}"
    if not doubled.fits:
        shares, gains_little = f"{share:.0%} of a step", "more accumulation does not fit"
    text = f"communication takes {shares}; {gains_little}"
    return CommunicationAdvice(now.step_time.communication_seconds, share, at_twice, enough, tuple(gains), text)


def is_worth_advice(estimate: Estimate) -> bool:
    """Whether communication takes 2 % of a step or more; False if that is not known."""
    time = estimate.step_time
    return time is not None and estimate.job.processes > 1 and communication_share(time) >= LEAST_SHARE


def communication_share(time: StepTime) -> float:
    """Share of a step's time that communication takes."""
    return time.communication_seconds / time.seconds


def per_sample(estimate: Estimate) -> float:
    """Seconds of a step for each of its samples."""
    assert estimate.step_time is not None
    return estimate.step_time.seconds / estimate.job.global_batch_size
