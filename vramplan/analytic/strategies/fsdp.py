"""What both of torch's FSDP have in common: parts of weights, gradients that are reduced to parts, streams."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from vramplan.analytic.strategies.ddp import Strategy
from vramplan.analytic.strategies.stored_weights import divided, loaded_dtype
from vramplan.memory.optimizer_steps import Weight
from vramplan.memory.recorder import Recorder

if TYPE_CHECKING:
    from vramplan.analytic.autograd.graph import Parameter
    from vramplan.analytic.played_step import Placed, Step
    from vramplan.inputs.job import Job
    from vramplan.memory.timeline import Storage

COMPUTE, GATHER, REDUCE, CAST = 0, 1, 2, 3
"""Streams: what is allocated on one that communicates does not serve the one that computes."""


def stored(parameter: Parameter, job: Job) -> Weight:
    """What trains is fp32 wherever there is mixed precision; the rest stays as it was loaded (accelerate 1.15).

    Version 2 leaves that out where anything is in four bits (utils/fsdp_utils.py: fsdp2_prepare_model).
    """
    weight = divided(parameter, job)
    upcasts = job.autocast != "none" and (job.quantize == "none" or job.fsdp.version == 1)
    return replace(weight, dtype="fp32") if parameter.trains and upcasts else weight


def gathered_dtype(parameter: Parameter, weight: Weight) -> str:
    """What it is gathered in: mixed precision's dtype, or the one that four bits are packed in."""
    return parameter.dtype if parameter.quantize == "none" else weight.dtype


class Sharded(Strategy):
    """One card's part of a run."""

    def __init__(self, step: Step, record: Recorder) -> None:
        super().__init__(step, record)
        self.gradients: list[int] = []
        """Reduced ones, of the own part."""
        self.offloads = self.job.offload == "all"
        """Whether the host has the own part of everything (``cpu_offload``), and updates it."""
        self.loaded: dict[Placed, list[int]] = {}
        """Weights that were loaded whole, and are to be divided."""

    def load(self) -> None:
        """A quantized model comes to every card whole (transformers 5.23, quantizers/quantizer_bnb_4bit.py)."""
        if self.job.quantize != "none" and self.job.fsdp.loads_whole_model:
            self.loaded = self.load_whole(self.step.placed)

    def loaded_dtype(self, one: Placed) -> str:
        """As transformers and PEFT leave it."""
        return loaded_dtype(one.parameter, self.job)

    def leave(self, divided: Iterable[Placed]) -> None:
        """Of weights that are divided now the scales stay."""
        for one in divided:
            if one in self.loaded:
                self.record.free(self.loaded[one][0])
            else:
                for storage in one.beside():
                    self.record.allocate(storage)

    def keep(self, gradient: Storage) -> None:
        """A reduced gradient stays to the optimizer's step, or goes to the host."""
        number = self.record.allocate(gradient)
        if self.offloads:
            self.record.free(number)
        else:
            self.gradients.append(number)

    def prepare(self) -> None:
        """No buckets."""

    def drop_gradients(self, offset: int) -> None:
        """``zero_grad``."""
        self.record.free_all(self.gradients)
        self.gradients.clear()
