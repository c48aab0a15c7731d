"""A step of two micro-steps, written from a step of one: the second repeats the operations of the first."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from vramplan.analytic.autograd.graph import LayerSection, StorageInfo, TakenGradient
from vramplan.analytic.step_record import StepRecord
from vramplan.memory import passes
from vramplan.step_time.kernels import Kernel


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
        sections.append(LayerSection(phase, section.layer, len(events), num_storages, len(kernels), *section[5:]))
        allocated = range(max(section.first_storage, num_inputs), following.first_storage)
        num_storages += len(allocated) - sum(copy in allocated for copy in copies)
        begin = max(section.first_event, num_inputs)
        events.extend(_added(record.events[begin : following.first_event], begin, taken, place_of))
        kernels += _with_additions(record.kernels, range(section.first_kernel, following.first_kernel), taken)
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
    storages = (
        *first[:num_inputs],
        *waiting.storages,
        *first[num_inputs:],
        *(infos.get(number) or first[number] for number in repeated),
    )
    return record._replace(
        storages=storages,
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
        buffers=tuple(sorted(in_both(record.buffers))),
        first_products={handle: number + num_inputs for handle, number in record.first_products.items()},
    )


def _shifted(section: LayerSection, num_inputs: int) -> LayerSection:
    """A section behind as many storages and events of batches that wait; the first begins with the batch."""
    if section.first_event == 0:
        return section
    return section._replace(
        first_event=section.first_event + num_inputs, first_storage=section.first_storage + num_inputs
    )


def _added(
    events: Sequence[int], first: int, taken: Sequence[TakenGradient], place_of: Mapping[int, int]
) -> Iterator[int]:
    """The events of a section, the first of which has the number `first`, when weights have a gradient to add to."""
    begin = 0
    for gradient in taken:
        end = gradient.event - first
        yield from _placed(events[begin:end], place_of)
        if gradient.is_copied:
            begin = end + 1  # the copy is not made
        else:
            assert gradient.storage is not None
            yield ~place_of[gradient.storage]
            begin = end
    yield from _placed(events[begin:], place_of)


def _placed(events: Iterable[int], place_of: Mapping[int, int]) -> Iterator[int]:
    """The events with other numbers of storages."""
    for event in events:
        yield place_of[event] if event >= 0 else ~place_of[~event]


def _with_additions(kernels: Sequence[Kernel], numbers: range, taken: Sequence[TakenGradient]) -> Iterator[Kernel]:
    """The kernels with these numbers, and one for each gradient that is added."""
    begin = numbers.start
    for gradient in taken:
        yield from kernels[begin : gradient.kernel]
        yield Kernel(0, gradient.added_bytes, 1, gradient.dtype)
        begin = gradient.kernel
    yield from kernels[begin : numbers.stop]
