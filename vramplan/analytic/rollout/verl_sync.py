"""verl's weights on their way to vLLM under FSDP 2: one whole weight after another, beside the bucket.

(verl 0.9.1, workers/engine/fsdp/transformer_impl.py: get_per_tensor_param; vllm_rollout/bucketed_weight_transfer.py.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from vramplan.analytic.strategies.fsdp2_columns import shares_columns
from vramplan.analytic.unfolded_step import Placed, Step
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES, MiB, ceil_div


class Sent(NamedTuple):
    """Storages and events of a sending, and what of the model it needs on the GPU."""

    kinds: list[Storage]
    events: list[int]
    needs: tuple[str, ...]


def bucket_of(step: Step) -> Storage:
    """The bucket."""
    return Storage(step.job.verl.bucket_mib * MiB, "communication", "bucket of weights on their way to vLLM")


def whole_weights(step: Step, own: int = 0) -> list[Storage]:
    """Two weights that are whole at a time, when they need most: the sender names one until it has the next.

    `own` is the number of GPUs of which each stages its rows of the second before; 0: they are on the GPU.
    """
    adapters = step.job.method != "full"
    placed = [one for one in step.own_placed if one.parameter.is_adapter == adapters]
    by_layer = (sorted(each, key=lambda one: len(one.parameter.shape) < 2) for _, each in groupby(placed, _layer_of))
    placed = [one for each in by_layer for one in each]  # a layer names its norms last
    dtype = step.job.lora_dtype if adapters else step.job.dtype
    sizes = [one.parameter.num_elements * DTYPE_BYTES[dtype] for one in placed]
    staged = [ceil_div(size, own) if own else 0 for size in sizes]
    columns = [size if shares_columns(step.job, one.parameter) else 0 for one, size in zip(placed, sizes, strict=True)]
    before, size, rows, copied = max(zip([0, *sizes[:-1]], sizes, staged, columns, strict=True), key=sum)
    engine = step.job.verl.engine_name
    found = [
        Storage(before, "communication", f"a whole weight on its way to {engine}"),
        Storage(rows, "communication", f"own rows of the next weight on its way to {engine}"),
        Storage(copied, "communication", "its columns, as received"),
        Storage(size, "communication", f"the next whole weight on its way to {engine}"),
    ]
    return [one for one in found if one.num_bytes]


def _layer_of(one: Placed) -> int | None:
    return one.layer


def sent_by_fsdp2(step: Step, bucket: Storage) -> Sent:
    """What a sending takes: ``DTensor.full_tensor()`` of each weight, or of each weight of the adapters.

    Own rows that wait in host memory are staged one after another; of adapters all are on the GPU, and so they are
    before 0.9.
    """
    job = step.job
    waits = job.offload == "all" or (job.verl.param_offload and job.method == "full" and not job.verl.stages_all)
    kinds = [bucket, *whole_weights(step, job.num_gpus if waits else 0)]
    numbers: Sequence[int] = range(len(kinds))
    return Sent(kinds, [*numbers, *(~number for number in numbers)], () if waits else ("weights",))
