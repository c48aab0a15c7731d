"""Weights as they were loaded, which strategies shard: their dtype, and the tensor of a quantized weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.analytic.autograd.graph import SAVED
from vramplan.analytic.autograd.ops import TORCHAO_NF4, packed_as, sharded_bytes
from vramplan.analytic.layers.modules import is_norm
from vramplan.memory.optimizer_steps import Weight

if TYPE_CHECKING:
    from vramplan.analytic.step_record import RecordedWeight
    from vramplan.inputs.job import Job


def loaded_dtype(parameter: RecordedWeight, job: Job) -> str:
    """Dtype after transformers and PEFT loaded it, before DeepSpeed casts it or FSDP gathers it in another."""
    copied = SAVED in parameter.name
    if parameter.is_adapter and not copied:
        return job.lora_dtype
    raised = job.prepare_for_kbit_training or (job.fp32_norms and is_norm(parameter.name))
    return (job.saved_dtype if copied else None) or ("fp32" if raised else job.dtype)


def divided(parameter: RecordedWeight, job: Job) -> Weight:
    """The tensor that is sharded: of a quantized weight the packed one, whose scales stay whole, but for torchao's."""
    if parameter.quantize == "none":
        return Weight(parameter.name, parameter.shape, loaded_dtype(parameter, job))
    if parameter.quantize == TORCHAO_NF4:
        return Weight(parameter.name, (sharded_bytes(parameter.stored),), "uint8")
    shape, dtype = packed_as(parameter.quantize, parameter.shape, job.quant_storage or job.dtype)
    return Weight(parameter.name, shape, dtype)
