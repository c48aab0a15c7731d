"""The passes over a timeline's events in plain Python: what the compiled ones are checked against, and replaced by.

:mod:`vramplan.memory.passes` documents the arguments and calls one or the other. Here all are arrays of the right type.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

MAX_SIZE = 1 << 60
"""Bytes of a storage, at most."""
MAX_TOTAL = 1 << 62
"""Bytes of all live storages, at most, so that sums and their roundings stay within 64 bits."""
MAX_NUMBER = (1 << 31) - 1
"""Of a storage: events are 32-bit integers."""


def check_kinds(kinds: Sequence[int], sizes: Sequence[int]) -> None:
    """Check that every kind has a size, which is in bounds.

    Raises:
        ValueError: if a kind has none, or a negative one.
        OverflowError: if one is larger than `MAX_SIZE`.
    """
    if sizes and min(sizes) < 0:
        raise ValueError("the size of a kind is not between 0 and 2**60 bytes")
    if sizes and max(sizes) > MAX_SIZE:
        raise OverflowError("the size of a kind is not between 0 and 2**60 bytes")
    if kinds and not 0 <= min(kinds) <= max(kinds) < len(sizes):
        raise ValueError("a storage has a kind that has no size")


def live_bytes(events: array[int], kinds: array[int], sizes: array[int]) -> array[int]:
    """Bytes alive after each event."""
    check_kinds(kinds, sizes)
    _check_storages(events, len(kinds))
    each = [sizes[kind] for kind in kinds]
    levels = list(accumulate([each[event] if event >= 0 else -each[~event] for event in events]))
    if levels and not -MAX_TOTAL <= min(levels) <= max(levels) <= MAX_TOTAL:
        raise OverflowError("the storages that are alive at once have more than 2**62 bytes")
    return array("q", levels)


def peak_bytes(events: array[int], kinds: array[int], sizes: array[int]) -> int:
    """The most bytes alive after any event; 0 if there is none."""
    return max(0, max(live_bytes(events, kinds, sizes), default=0))


def live_by_group(
    events: array[int],
    kinds: array[int],
    sizes: array[int],
    groups: array[int],
    num_groups: int,
    at: array[int],
) -> list[array[int]]:
    """For each group of kinds, the bytes alive after each of the events `at`."""
    check_kinds(kinds, sizes)
    if len(groups) != len(sizes) or not 0 <= num_groups <= MAX_NUMBER:
        raise ValueError("expected a group for each kind, and less than 2**31 groups")
    if groups and not 0 <= min(groups) <= max(groups) < num_groups:
        raise ValueError("a kind has a group that there is not")
    if at and (list(at) != sorted(at) or at[0] < 0 or at[-1] >= len(events)):
        raise ValueError("expected indices of events in ascending order")
    live = [0] * num_groups
    totals = [array("q") for _ in live]
    done = 0
    for index in at:
        _check_storages(events[done : index + 1], len(kinds))
        for event in events[done : index + 1]:
            kind = kinds[event if event >= 0 else ~event]
            live[groups[kind]] += sizes[kind] if event >= 0 else -sizes[kind]
            if abs(live[groups[kind]]) > MAX_TOTAL:
                raise OverflowError("the storages that are alive at once have more than 2**62 bytes")
        done = index + 1
        for total, size in zip(totals, live, strict=True):
            total.append(size)
    return totals


def live_at(events: array[int]) -> array[int]:
    """The storages alive after the events, in order of allocation."""
    live: dict[int, None] = {}
    for event in events:
        if event >= 0 and event not in live:
            live[event] = None
        elif event < 0 and ~event in live:
            del live[~event]
        else:
            raise ValueError("an event frees a storage that is not allocated, or allocates one that is")
    return array("i", live)


def index_of_highest(levels: array[int]) -> int:
    """Index of the highest level, the first if there are several."""
    return max(range(len(levels)), key=levels.__getitem__)


def shifted(events: array[int], offset: int) -> array[int]:
    """The events with `offset` added to the storages' numbers."""
    return array("i", [_moved(event, offset) for event in events])


def relocated(events: array[int], slots: array[int], bases: array[int]) -> array[int]:
    """The events with ``bases[slot]`` added to the storages' numbers."""
    if len(slots) != len(events):
        raise ValueError("expected a slot for each event")
    if slots and not 0 <= min(slots) <= max(slots) < len(bases):
        raise ValueError("an event has a slot that has no base")
    return array("i", [_moved(event, bases[slot]) for event, slot in zip(events, slots, strict=True)])


def selected(events: array[int], flags: bytes) -> array[int]:
    """The events of storages whose flag is not 0."""
    _check_storages(events, len(flags))
    return array("i", [event for event in events if flags[event if event >= 0 else ~event]])


def renumbered(events: array[int], numbers: array[int], next_number: int) -> tuple[array[int], array[int], array[int]]:
    """Events with new numbers, the storages allocated, and the number of each storage afterwards."""
    if next_number < 0:
        raise ValueError("expected a next number of 0 or more")
    _check_storages(events, len(numbers))
    numbers, storages, result = array("i", numbers), array("i"), array("i")
    for event in events:
        storage = event if event >= 0 else ~event
        before, numbers[storage] = numbers[storage], -1
        if event >= 0:
            if next_number > MAX_NUMBER:
                raise ValueError("a storage number is not between 0 and 2**31 - 1")
            numbers[storage] = next_number
            result.append(next_number)
            storages.append(storage)
            next_number += 1
        if before >= 0:
            result.append(~before)
    return result, storages, numbers


def _moved(event: int, by: int) -> int:
    number = by + (event if event >= 0 else ~event)
    if not 0 <= number <= MAX_NUMBER:
        raise ValueError("a storage number is not between 0 and 2**31 - 1")
    return number if event >= 0 else ~number


def _check_storages(events: array[int], num_storages: int) -> None:
    if events and not -num_storages <= min(events) <= max(events) < num_storages:
        raise ValueError("an event names a storage that is not listed")
