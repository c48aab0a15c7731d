"""What a simulated step leaves: its storages, events, kernels and weights, without the graph behind them.

Records are plain data, so that they can be compared, scaled to other micro-batches and kept on disk.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from vramplan.analytic.autograd.graph import SAVED, LayerSection, Parameter, StorageInfo, Stored, TakenGradient
from vramplan.analytic.autograd.tape import Tape
from vramplan.dataclass import dataclass
from vramplan.memory import passes
from vramplan.memory.roofline import Kernel


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
    embedded: int | None
    """Number of the first embedding's weight."""
    widths: Mapping[str, int]
    """Smaller side of each adapted layer."""
    layers_without_input_grad: frozenset[int]
    idle: frozenset[tuple[int | None, str]]
    """Frozen linear layers whose input needs no gradient: they have no backward."""
    routers: frozenset[str]
    """Modules that are no linear layers but have a weight of two dimensions."""
    waiting: range = range(0)
    """Ids of the storages of the batches to come."""
    taken: Sequence[TakenGradient] | None = None
    """The gradients that weights took over, or copied; None if a further micro-step would not repeat the first."""

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
        None,
        {},
        frozenset(),
        frozenset(),
        frozenset(),
    )


def do_the_same(one: StepRecord, other: StepRecord) -> bool:
    """Whether two records have the same operations, whatever the sizes of their tensors."""
    return (
        one.events == other.events
        and one.sections == other.sections
        and len(one.kernels) == len(other.kernels)
        and (one.kept, one.transient_gradients, one.waiting) == (other.kept, other.transient_gradients, other.waiting)
        and [(weight.gradient, weight.is_reached) for weight in one.weights]
        == [(weight.gradient, weight.is_reached) for weight in other.weights]
    )


class WaitingBatches(NamedTuple):
    """The batches of an optimizer step that wait on the GPU while the first runs."""

    storages: Sequence[StorageInfo]
    """As many as the batch that runs has."""
    frees: Sequence[int]
    """The events by which the training loop drops all: the running batch's storages come first, then these."""
    are_kept: bool
    """Whether they count as saved for backward."""


def with_second_micro_step(record: StepRecord, waiting: WaitingBatches) -> StepRecord:
    """The record of a step of two micro-steps, from that of a step of one.

    The second does the same operations on the same batch, but weights have a gradient by then: one that the first took
    over is added and freed at once, one that it copied is added without a copy (torch's accumulate_grad.h).

    Args:
        record: a step of one micro-step, whose first storages are its batch.
        waiting: the batches that wait.

    Raises:
        ValueError: if something else than gradients and the batch outlives the first micro-step, or a gradient is used
            further behind its weight.
    """
    num_inputs = len(waiting.storages)
    end = next(number for number, section in enumerate(record.sections) if section.phase == "end")
    last = record.sections[end]
    alive = set(passes.live_at(record.events, last.first_event - 1))
    gradients = {number for weight in record.weights for number in weight.gradient}
    if (
        alive != {*range(num_inputs), *gradients}
        or record.taken is None
        or any(taken.is_used for taken in record.taken)
    ):
        raise ValueError("a second micro-step does not repeat the first")
    copies = {record.events[taken.event] for taken in record.taken if taken.is_copied}
    repeated = [number for number in range(num_inputs, last.first_storage) if number not in copies]
    second = last.first_storage + num_inputs
    place_of = dict(zip(repeated, range(second, second + len(repeated)), strict=True))
    place_of |= {number: number for number in range(num_inputs)}
    infos = {taken.storage: taken.info for taken in record.taken if not taken.is_copied}

    events = array("i", range(2 * num_inputs))
    events.extend(passes.shifted(record.events[num_inputs : last.first_event], num_inputs))
    kernels = list(record.kernels[: last.first_kernel])
    sections = [_shifted(section, num_inputs) for section in record.sections[:end]]
    num_storages = second
    for number, section in enumerate(record.sections[:end]):
        following, taken = record.sections[number + 1], [one for one in record.taken if one.section == number]
        phase = section.phase.replace(".0", ".1")
        sections.append(LayerSection(phase, section.layer, len(events), num_storages, len(kernels)))
        allocated = range(max(section.first_storage, num_inputs), following.first_storage)
        num_storages += len(allocated) - sum(copy in allocated for copy in copies)
        begin = max(section.first_event, num_inputs)
        for stop in (*taken, None):
            upto = following.first_event if stop is None else stop.event
            for event in record.events[begin:upto]:
                if event >= 0:
                    events.append(place_of[event])
                else:
                    events.append(~place_of[~event])
            begin = upto
            if stop is not None and stop.is_copied:
                begin += 1
            elif stop is not None:
                assert stop.storage is not None
                events.append(~place_of[stop.storage])
        begin = section.first_kernel
        for stop in taken:
            kernels += record.kernels[begin : stop.kernel]
            kernels.append(Kernel(0, stop.added_bytes, 1, stop.dtype))
            begin = stop.kernel
        kernels += record.kernels[begin : following.first_kernel]
    for phase in ("end", "over"):
        sections.append(LayerSection(phase, None, len(events), num_storages, len(kernels)))
        events.extend(waiting.frees if phase == "end" else ())

    def in_both(numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            yield number if number < num_inputs else number + num_inputs
            if num_inputs <= number and number in place_of:
                yield place_of[number]

    added = {place_of[taken.storage] for taken in record.taken if taken.storage is not None}
    first = record.storages
    return record._replace(
        storages=(
            *first[:num_inputs],
            *waiting.storages,
            *first[num_inputs:],
            *(infos.get(number) or first[number] for number in repeated),
        ),
        events=events,
        sections=tuple(sections),
        kernels=tuple(kernels),
        kept=frozenset(in_both(record.kept)) | (set(range(num_inputs, 2 * num_inputs)) if waiting.are_kept else set()),
        transient_gradients=frozenset(in_both(record.transient_gradients)) | added,
        weights=tuple(
            replace(weight, gradient=tuple(number + num_inputs for number in weight.gradient))
            for weight in record.weights
        ),
        waiting=range(num_inputs, 2 * num_inputs),
    )


def _shifted(section: LayerSection, num_inputs: int) -> LayerSection:
    """A section behind as many storages and events of batches that wait; the first begins with the batch."""
    if section.first_event == 0:
        return section
    return section._replace(
        first_event=section.first_event + num_inputs, first_storage=section.first_storage + num_inputs
    )
