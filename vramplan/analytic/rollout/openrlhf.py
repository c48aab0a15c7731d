"""OpenRLHF's generation by vLLM: weights on their way there, one at a time, and vLLM awake beside the models.

Mirrors OpenRLHF 0.11 (trainer/ray/ppo_actor.py: broadcast_to_vllm; trainer/ppo_trainer.py; trainer/ppo_utils/
samples_generator.py). Below ZeRO-3 nothing is gathered. vLLM on the same GPUs gets a copy of each weight by CUDA's
interprocess memory; on others it is sent from where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from vramplan.analytic.rollout.colocated_vllm import vllm_awake, vllm_weight_bytes
from vramplan.analytic.rollout.phase import RolloutPhase, at_once, emptied_cache
from vramplan.analytic.unfolded_step import Step
from vramplan.inputs.rollout_rules import is_colocated
from vramplan.memory import vllm
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES


def generation(step: Step) -> Iterator[RolloutPhase]:
    """What happens from one update of the actor to the next scoring, each phase with nothing left behind it."""
    job = step.job
    yield emptied_cache("optimizer")  # states that leave the GPU do so as the update ends
    if job.openrlhf.trains == "critic":
        return
    awake = [vllm.weights(job, vllm_weight_bytes(job, step.placed))] if vllm.sleeps(job) else []
    yield at_once("generation", [*awake, *_sent(step)]).emptied()
    if vllm.sleeps(job):
        yield at_once("generation", vllm_awake(step)).emptied()


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
