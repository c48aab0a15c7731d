"""OpenRLHF's generation by vLLM: weights on their way there, one at a time, and vLLM awake beside the models.

Mirrors OpenRLHF 0.11 (trainer/ray/ppo_actor.py: broadcast_to_vllm; trainer/ppo_trainer.py; trainer/ppo_utils/
samples_generator.py). Below ZeRO-3 nothing is gathered. vLLM on the same GPUs gets a copy of each weight by CUDA's
interprocess memory; on others it is sent from where it lies.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from vramplan.analytic.unfolded_step import Step
from vramplan.analytic.vllm_rollout import vllm_awake, vllm_weight_bytes
from vramplan.inputs.rollout_rules import is_colocated
from vramplan.memory import vllm
from vramplan.memory.timeline import EMPTY_CACHE, Storage
from vramplan.units import DTYPE_BYTES


class Stretch(NamedTuple):
    """Storages that are there at once."""

    phase: str
    kinds: list[Storage]
    kind_of: array[int]
    """The number of each storage's kind."""
    events: array[int]


def stretches(step: Step) -> Iterator[Stretch]:
    """What happens from one update of the actor to the next scoring, each stretch with nothing left behind it."""
    job = step.job
    yield _emptied("optimizer", [])  # states that leave the GPU do so as the update ends
    if job.openrlhf.trains == "critic":
        return
    awake = [vllm.weights(job, vllm_weight_bytes(job, step.placed))] if vllm.sleeps(job) else []
    yield _emptied("generation", [*awake, *_sent(step)])
    if vllm.sleeps(job):
        yield _emptied("generation", vllm_awake(step))


def _sent(step: Step) -> list[Storage]:
    """The largest weight, gathered, and its copy for vLLM."""
    job = step.job
    size = max(prod(one.parameter.shape) for one in step.placed) * DTYPE_BYTES[job.dtype]
    found = []
    if job.strategy == "zero3" and job.num_gpus > 1:
        found.append(Storage(size, "communication", "a whole weight on its way to vLLM"))
    if is_colocated(job):
        found.append(Storage(size, "communication", "copy of a weight for vLLM"))
    return found


def _emptied(phase: str, kinds: Sequence[Storage]) -> Stretch:
    """These at once, then an empty cache."""
    last = len(kinds)
    events = [*range(last), *(~number for number in reversed(range(last))), last, ~last]
    return Stretch(phase, [*kinds, EMPTY_CACHE], array("i", range(last + 1)), array("i", events))
