"""How ms-swift's weights reach vLLM: in one or several parts, gathered if they are sharded, joined for a server.

Mirrors ms-swift 4.6 (rlhf_trainers/rollout_mixin.py: split_batches, _move_full_model_to_vllm; utils.py:
_create_parameter_buckets) and deepspeed 0.19 (runtime/zero/partition_parameters.py: _allgather_params_coalesced).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramplan.inputs.job import Job
from vramplan.memory.timeline import Storage
from vramplan.units import ceil_div

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Placed, Step

BACK = "own shares from the host, brought back behind a generation"
JOINED_BYTES = 512 << 20
"""Size of a buffer of joined weights, which a larger weight exceeds (SWIFT_UPDATE_WEIGHTS_BUCKET_SIZE)."""


def sends_by_swift(job: Job) -> bool:
    """Whether ms-swift's trainers send the weights."""
    return job.vllm_sync_parts is not None


def joins_weights(job: Job) -> bool:
    """Whether the first process joins weights in a buffer for vLLM's server, one buffer after the other."""
    return job.generate_with == "vllm_server" and sends_by_swift(job)


def gathered_at_once(step: Step) -> int:
    """Bytes of the largest part of sharded weights, without padding."""
    return max(sum(_sizes(part)) for part in _parts(step))


def own_bytes(step: Step) -> int:
    """Bytes of a GPU's own shares of what is gathered, which come from the host before and go when all is there.

    0 if the GPU has them, or all.
    """
    job = step.job
    if job.offload != "all" or job.strategy != "zero3" or job.num_gpus == 1:
        return 0
    return max(sum(ceil_div(size, job.num_gpus) for size in _sizes(part)) for part in _parts(step))


def brought_back(step: Step) -> tuple[list[Storage], list[Storage]]:
    """A GPU's own shares that the host has and that come onto the GPU behind a generation: (trained weights, others).

    offload_model moves what is on the GPU to the host, buffers at least, then brings all back (rollout_mixin.py:
    load_model).
    The optimizer's step makes those that train parts of the host's again.
    """
    job = step.job
    if job.offload != "all" or job.strategy != "zero3" or job.rollout_offload not in ("model", "all"):
        return [], []
    found: list[list[Storage]] = []
    for trains in (True, False):
        part = [one for one in step.placed if one.parameter.trains == trains]
        size = sum(ceil_div(one, job.num_gpus) for one in _sizes(part))
        found.append([Storage(size, "parameter", BACK, "of weights that train" if trains else "")] if size else [])
    trained, others = found
    if job.loads_reference:
        size = sum(ceil_div(one, job.num_gpus) for one in _sizes(step.second_placed))
        others.append(Storage(size, "parameter", f"reference's {BACK}"))
    return trained, others


def joined_bytes(step: Step) -> int:
    """Bytes of the largest buffer of joined weights; 0 if none are joined."""
    if not joins_weights(step.job):
        return 0
    largest = 0
    for part in _parts(step):
        joined = 0
        for size in _sizes([one for one in part if not one.parameter.is_adapter]):
            joined = size if joined and joined + size > JOINED_BYTES else joined + size
            largest = max(largest, joined)
    return largest


def _parts(step: Step) -> list[list[Placed]]:
    """Weights that are sent together: groups of layers, then all outside of layers."""
    count = step.job.vllm_sync_parts or 1
    if count == 1:
        return [[*step.placed]]
    layers: dict[int | None, list[Placed]] = {}
    for one in step.placed:
        layers.setdefault(one.layer, []).append(one)
    outside, of_layers = layers.pop(None, []), [*layers.values()]
    each = ceil_div(len(of_layers), count)
    groups = [of_layers[start : start + each] for start in range(0, len(of_layers), each)]
    parts = [[one for layer in group for one in layer] for group in groups]
    return [*parts, outside] if outside else parts


def _sizes(part: Sequence[Placed]) -> list[int]:
    return [sum(storage.num_bytes for storage in one.storages()) for one in part]
