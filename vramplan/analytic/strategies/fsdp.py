"""What FSDP1 and FSDP2 have in common: sharded weights and gradients, streams."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramplan.analytic.strategies.ddp import Strategy
from vramplan.analytic.strategies.stored_weights import divided, loaded_dtype
from vramplan.memory.optimizer_steps import Weight
from vramplan.memory.recorder import Recorder

if TYPE_CHECKING:
    from vramplan.analytic.step_record import RecordedWeight
    from vramplan.analytic.unfolded_step import Placed, Step
    from vramplan.inputs.job import Job
    from vramplan.memory.timeline import Storage

COMPUTE, GATHER, REDUCE, CAST = 0, 1, 2, 3
"""CUDA streams: memory allocated on a communication stream does not serve the compute stream."""


def stored(parameter: RecordedWeight, job: Job) -> Weight:
    """The sharded tensor: trainable weights are fp32 under mixed precision, others stay as loaded (accelerate 1.15).

    Version 2 does not upcast if anything is in four bits (utils/fsdp_utils.py: fsdp2_prepare_model).
    """
    weight = divided(parameter, job)
    upcasts = job.autocast != "none" and (job.quantize == "none" or job.fsdp.version == 1)
    return replace(weight, dtype="fp32") if parameter.trains and upcasts else weight


def gathered_dtype(parameter: RecordedWeight, weight: Weight) -> str:
    """Dtype of the gathered weight: mixed precision's, or the one that four bits are packed in."""
    return parameter.dtype if parameter.quantize == "none" else weight.dtype


class Sharded(Strategy):
    """One GPU's part of a run."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        super().__init__(step, record, gpu)
        self.gradients: list[int] = []
        """Reduced gradients of the own part."""
        self.offloads = self.job.offload == "all"
        """Whether the host holds the own part of everything (``cpu_offload``), and updates it."""
        self.loaded: dict[Placed, Sequence[int]] = {}
        """Weights that were loaded whole, to be sharded."""
        self.own_parts: dict[str, list[int]] = {"weights": [], "optimizer": []}
        """Own parts of weights, and their states."""
        self.parked: set[str] = set()
        """Which of them are in host memory."""

    def load(self) -> None:
        """Load a quantized model whole onto every GPU (transformers 5.23, quantizers/quantizer_bnb_4bit.py).

        torchtune quantizes one weight after another and keeps its part (0.6.1, training/_distributed.py:
        load_from_full_model_state_dict).
        """
        if self.job.quantize != "none" and self.job.fsdp.loads_whole_model and self.job.layers_of != "torchtune":
            self.loaded = self.load_whole(self.step.placed)

    def loaded_dtype(self, one: Placed) -> str:
        return loaded_dtype(one.parameter, self.job)

    def leave(self, divided: Iterable[Placed]) -> None:
        """Free the whole weights once they are sharded; their scales stay."""
        for one in divided:
            if one in self.loaded:
                self.record.free(self.loaded[one][0])
            else:
                for storage in one.beside():
                    self.record.allocate(storage)

    def keep(self, gradient: Storage) -> None:
        """Keep a reduced gradient until the optimizer's step, or send it to the host."""
        number = self.record.allocate(gradient)
        if self.offloads:
            self.send("to_host", gradient.num_bytes, hidden=True)
            self.record.free(number)
        else:
            self.gradients.append(number)

    def hold(self, parts: Container[str]) -> None:
        """Have these on the GPU, of weights and optimizer states, and what of the others does not wait on the host."""
        record = self.record
        for name in self.job.verl.in_host_memory:
            numbers, is_here = self.own_parts[name], name not in self.parked
            if is_here and name not in parts:
                record.free_all(numbers)
                record.empty_cache()
                self.parked.add(name)
            elif not is_here and name in parts:
                self.own_parts[name] = [record.allocate(record.kinds[record.kind_of[number]]) for number in numbers]
                self.parked.remove(name)

    def update(self, weights: list[Weight], first: bool) -> None:
        earlier = len(self.record.kind_of)
        super().update(weights, first)
        if first and self.job.verl.in_host_memory:
            added = range(earlier, len(self.record.kind_of))
            kinds, kind_of = self.record.kinds, self.record.kind_of
            self.own_parts["optimizer"] += [one for one in added if kinds[kind_of[one]].category == "optimizer_state"]

    def prepare(self) -> None:
        """FSDP has no buckets."""

    def drop_gradients(self, offset: int) -> None:
        self.record.free_all(self.gradients)
        self.gradients.clear()
