"""What a simulated step leaves: its storages, events, kernels and weights, without the graph behind them.

Records are plain data, so that they can be compared, scaled to other micro-batches and kept on disk.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from vramplan.analytic.autograd.graph import SAVED, LayerSection, Parameter, StorageInfo, Stored, TakenGradient
from vramplan.analytic.autograd.tape import Tape
from vramplan.dataclass import dataclass
from vramplan.step_time.kernels import Kernel


@dataclass(frozen=True, slots=True, eq=False)
class RecordedWeight:
    """A weight of the simulated layers, as the step left it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    layer: int | None
    card: int
    copies: int
    """Number of experts whose weight of this name is simulated by this one."""
    trains: bool
    is_reached: bool
    """Whether a backward pass has made a gradient for it."""
    gradient: tuple[int, ...]
    """Numbers of its gradient's storages; empty if it has none or if the gradient does not stay."""
    stored: Stored
    quantize: str
    held_by_graph: bool
    """Whether a graph keeps the weight's own memory until the graph is dropped (``ctx.tensors``)."""
    viewed: bool
    """Whether backward keeps a view of it; ZeRO-3 empties the weight, but not a view."""

    @classmethod
    def of(cls, parameter: Parameter) -> RecordedWeight:
        """The record of a parameter."""
        gradient = parameter.grad
        return cls(
            parameter.name,
            parameter.shape,
            parameter.dtype,
            parameter.layer,
            parameter.card,
            parameter.copies,
            parameter.trains,
            parameter.is_reached,
            () if gradient is None else gradient.storage.ids,  # type: ignore[union-attr]
            parameter.stored,
            parameter.quantize,
            parameter.held_by_graph,
            parameter.viewed,
        )

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_adapter(self) -> bool:
        """Whether it belongs to an adapter, by PEFT's names, and not to the model itself."""
        return ".lora_" in self.name or SAVED in self.name


class StepRecord(NamedTuple):
    """What a simulated step leaves."""

    storages: Sequence[StorageInfo]
    events: array[int]
    sections: Sequence[LayerSection]
    kernels: Sequence[Kernel]
    kept: frozenset[int]
    """Ids of storages that are saved for backward."""
    transient_gradients: frozenset[int]
    """Ids of gradient storages that are freed as soon as they are produced."""
    gives_gradients: bool
    """Whether a hook consumes each weight's gradient as soon as it is produced."""
    weights: Sequence[RecordedWeight]
    embedded: int | None = None
    """Number of the first embedding's weight."""
    widths: Mapping[str, int] = MappingProxyType({})
    """Smaller side of each adapted layer."""
    layers_without_input_grad: frozenset[int] = frozenset()
    idle: frozenset[tuple[int | None, str]] = frozenset()
    """Frozen linear layers whose input needs no gradient: they have no backward."""
    routers: frozenset[str] = frozenset()
    """Modules that are no linear layers but have a weight of two dimensions."""
    waiting: range = range(0)
    """Ids of the storages of the batches to come."""
    taken: Sequence[TakenGradient] | None = None
    """The gradients that weights took over, or copied; None if a further micro-step would not repeat the first."""
    first_products: Mapping[tuple[int, bool], int] = MappingProxyType({})
    """Id of the result of the first matrix product, by GPU and whether backward runs."""
    run_times: Mapping[int, int] = MappingProxyType({})
    """How often a forward of a phase runs that is simulated once, by its number."""
    buffers: Sequence[int] = ()
    """Ids of the buffers of kernels, whose sizes depend on the GPU."""
    second_weights: Sequence[RecordedWeight] = ()
    """The weights of a second model: a teacher, or PPO's value model, which trains."""

    def end_of(self, section: int) -> LayerSection:
        """The section after the one with this number, or what would come next."""
        if section + 1 < len(self.sections):
            return self.sections[section + 1]
        return LayerSection("", None, len(self.events), len(self.storages), len(self.kernels))


def record_of(tape: Tape) -> StepRecord:
    """The record of a tape."""
    return StepRecord(
        tuple(tape.storages),
        array("i", tape.events),
        tuple(tape.sections),
        tuple(tape.kernels),
        frozenset(tape.kept),
        frozenset(tape.transient_gradients),
        tape.gives_gradients,
        tuple(RecordedWeight.of(parameter) for parameter in tape.parameters.values()),
        first_products=dict(tape.first_products),
        run_times=dict(tape.run_times),
        buffers=buffers_of(tape.storages),
        second_weights=tuple(RecordedWeight.of(parameter) for parameter in tape.second_parameters.values()),
    )


def buffers_of(storages: Sequence[StorageInfo]) -> tuple[int, ...]:
    """Numbers of the storages whose sizes depend on the GPU."""
    return tuple(number for number, info in enumerate(storages) if info.kernel)


def do_the_same(one: StepRecord, other: StepRecord) -> bool:
    """Whether two records have the same operations, whatever the sizes of their tensors."""
    return (
        one.events == other.events
        and one.sections == other.sections
        and one.run_times == other.run_times
        and len(one.kernels) == len(other.kernels)
        and (one.kept, one.transient_gradients, one.waiting) == (other.kept, other.transient_gradients, other.waiting)
        and [(weight.gradient, weight.is_reached) for weight in one.weights]
        == [(weight.gradient, weight.is_reached) for weight in other.weights]
    )
