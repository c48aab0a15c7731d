"""Passes over a timeline's events, each one loop over up to millions of them, compiled if the library is there.

Event ``n`` allocates storage number n, ``~n`` frees it. Storages are of few kinds, since layers repeat: `kinds` has the
number of each storage's kind, `sizes` (and what else is known of kinds) one item for each kind. So a step of another
batch size is the same events and kinds with other sizes.

Wherever an array is expected, any sequence of integers will do; ``array("i")`` (for sizes, levels, indices and bases
``array("q")``) is not converted.

``_passes.c`` and :mod:`vramplan.memory.passes_python` give the same results and raise exceptions of the same type. The
compiled library is used if it is there and belongs to this version, unless the environment variable
``VRAMPLAN_PURE_PYTHON`` is set to anything but 0.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from functools import wraps
from types import ModuleType
from typing import ParamSpec, TypeVar

from vramplan.errors import ConfigError, setting
from vramplan.memory import passes_python
from vramplan.version import __version__

P = ParamSpec("P")
R = TypeVar("R")


class TooManyBytesError(ConfigError, ValueError):
    """A tensor of more than 2**60 bytes, or all tensors at once of more than 2**62."""

    def __init__(self) -> None:
        shorter = f"choose a smaller {setting('micro_batch_size')} or {setting('sequence_length')}"
        super().__init__(f"the tensors have more bytes than 64-bit numbers count: {shorter}")


def _load() -> tuple[ModuleType | None, str]:
    """(the compiled library or None, what to call the implementation in use)."""
    if os.environ.get("VRAMPLAN_PURE_PYTHON", "0") not in ("", "0"):
        return None, "pure Python core, VRAMPLAN_PURE_PYTHON is set"
    try:
        from vramplan.memory import _passes
    except ImportError:
        return None, "pure Python core, the compiled one is not installed"
    if _passes.__version__ != __version__:
        return None, f"pure Python core, the compiled one is of version {_passes.__version__}"
    return _passes, "compiled core"


compiled, _description = _load()


def describe() -> str:
    """Which implementation is in use, and why if it is not the compiled one."""
    return _description


def bounded(function: Callable[P, R]) -> Callable[P, R]:
    """The function with an OverflowError raised as a :class:`TooManyBytesError`."""

    @wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(*arguments, **keywords)
        except OverflowError:
            raise TooManyBytesError from None

    return call


def ints(values: Sequence[int]) -> array[int]:
    """The values as 32-bit integers: the same object if it is such an array.

    Raises:
        ValueError: if a value does not fit.
    """
    try:
        return _as_array("i", values)
    except OverflowError as error:
        raise ValueError(f"an integer has more bits than expected: {error}") from None


def longs(values: Sequence[int]) -> array[int]:
    """The values as 64-bit integers: the same object if it is such an array.

    Raises:
        OverflowError: if a value does not fit.
    """
    return _as_array("q", values)


@bounded
def live_bytes(events: Sequence[int], kinds: Sequence[int], sizes: Sequence[int]) -> array[int]:
    """Bytes alive after each event.

    Raises:
        ValueError: if an event names a storage without a kind, or a kind has no size.
        TooManyBytesError: if a size is larger than 2**60 bytes, or a sum than 2**62.
    """
    events, kinds, sizes = ints(events), ints(kinds), longs(sizes)
    if compiled is None:
        return passes_python.live_bytes(events, kinds, sizes)
    return _longs_of(compiled.live_bytes(events.tobytes(), kinds.tobytes(), sizes.tobytes()))


@bounded
def peak_bytes(events: Sequence[int], kinds: Sequence[int], sizes: Sequence[int]) -> int:
    """The most bytes alive after any event; 0 if there is none.

    Raises:
        ValueError, TooManyBytesError: as :func:`live_bytes`.
    """
    events, kinds, sizes = ints(events), ints(kinds), longs(sizes)
    if compiled is None:
        return passes_python.peak_bytes(events, kinds, sizes)
    return int(compiled.peak_bytes(events.tobytes(), kinds.tobytes(), sizes.tobytes()))


@bounded
def live_by_group(
    events: Sequence[int],
    kinds: Sequence[int],
    sizes: Sequence[int],
    groups: Sequence[int],
    num_groups: int,
    at: Sequence[int],
) -> list[array[int]]:
    """For each group of kinds, the bytes alive after each of the events `at`.

    Args:
        events: the events.
        kinds: kind of each storage.
        sizes: bytes of each kind.
        groups: group of each kind, from 0 on.
        num_groups: how many groups there are.
        at: indices of events, in ascending order.

    Raises:
        ValueError, TooManyBytesError: as :func:`live_bytes`; or if `groups` or `at` are out of range.
    """
    events, kinds, sizes, groups, at = ints(events), ints(kinds), longs(sizes), ints(groups), longs(at)
    if compiled is None:
        return passes_python.live_by_group(events, kinds, sizes, groups, num_groups, at)
    result = _longs_of(
        compiled.live_by_group(
            events.tobytes(), kinds.tobytes(), sizes.tobytes(), groups.tobytes(), num_groups, at.tobytes()
        )
    )
    return [result[group * len(at) : (group + 1) * len(at)] for group in range(num_groups)]


def live_at(events: Sequence[int], index: int) -> array[int]:
    """The storages alive right after event `index` (-1: before the first), in order of allocation.

    Raises:
        ValueError: if there is no such event, or a storage is allocated while it is alive, or freed while it is not.
    """
    if not -1 <= index < len(events):
        raise ValueError(f"there is no event {index} of {len(events)}")
    events = ints(events)
    if compiled is None:
        return passes_python.live_at(events[: index + 1])
    return _ints_of(compiled.live_at(_slice(events, 0, index + 1)))


def highest(levels: Sequence[int], first: int, end: int) -> int:
    """The highest of ``levels[first:end]``.

    Raises:
        ValueError: if this is empty or goes beyond the levels.
    """
    return levels[index_of_highest(levels, first, end)]


@bounded
def index_of_highest(levels: Sequence[int], first: int, end: int) -> int:
    """Index in `levels` of the highest of ``levels[first:end]``, the first if there are several.

    Raises:
        ValueError: if this is empty or goes beyond the levels.
    """
    if not 0 <= first < end <= len(levels):
        raise ValueError(f"there are no levels {first} to {end} of {len(levels)}")
    levels = longs(levels)
    if compiled is None:
        return first + passes_python.index_of_highest(levels[first:end])
    return first + int(compiled.index_of_highest(_slice(levels, first, end)))


def shifted(events: Sequence[int], offset: int) -> array[int]:
    """The events with `offset` added to the storages' numbers.

    Raises:
        ValueError: if a number becomes negative or larger than 2**31 - 1.
    """
    events = ints(events)
    if compiled is None:
        return passes_python.shifted(events, offset)
    return _ints_of(compiled.shifted(events.tobytes(), offset))


@bounded
def relocated(events: Sequence[int], slots: Sequence[int], bases: Sequence[int]) -> array[int]:
    """The events with ``bases[slot]`` added to the storages' numbers; `slots` has the slot of each event.

    Raises:
        ValueError: if a number becomes negative or larger than 2**31 - 1, or an event has no slot, or a slot no base.
    """
    events, slots, bases = ints(events), ints(slots), longs(bases)
    if compiled is None:
        return passes_python.relocated(events, slots, bases)
    return _ints_of(compiled.relocated(events.tobytes(), slots.tobytes(), bases.tobytes()))


def selected(events: Sequence[int], flags: bytes | bytearray) -> array[int]:
    """The events of storages whose flag, a byte for each, is not 0.

    Raises:
        ValueError: if an event's storage has no flag.
    """
    events, flags = ints(events), bytes(flags)
    if compiled is None:
        return passes_python.selected(events, flags)
    return _ints_of(compiled.selected(events.tobytes(), flags))


def renumbered(
    events: Sequence[int], numbers: Sequence[int], next_number: int
) -> tuple[array[int], array[int], array[int]]:
    """Events that repeat a piece of a step, with numbers of their own.

    An allocation gets the next number; the number that its storage had until then, if any, is freed right after it. A
    free frees the storage's number, and is left out if there is none.

    Args:
        events: the piece.
        numbers: the number that each storage has so far, negative if none.
        next_number: the first new number.

    Returns:
        The events, the storages that new numbers were given to, in order, and `numbers` as they are afterwards.

    Raises:
        ValueError: if an event's storage is not in `numbers`, or numbers become larger than 2**31 - 1.
    """
    events, numbers = ints(events), ints(numbers)
    if compiled is None:
        return passes_python.renumbered(events, numbers, next_number)
    result = compiled.renumbered(events.tobytes(), numbers.tobytes(), next_number)
    return _ints_of(result[0]), _ints_of(result[1]), _ints_of(result[2])


def _as_array(typecode: str, values: Sequence[int]) -> array[int]:
    if isinstance(values, array) and values.typecode == typecode:
        return values
    return array(typecode, values)


def _slice(values: array[int], first: int, end: int) -> bytes:
    with memoryview(values) as view:
        return view[first:end].tobytes()


def _ints_of(data: bytes) -> array[int]:
    result = array("i")
    result.frombytes(data)
    return result


def _longs_of(data: bytes) -> array[int]:
    result = array("q")
    result.frombytes(data)
    return result
