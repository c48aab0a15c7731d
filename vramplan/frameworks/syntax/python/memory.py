"""The heap of a script that is followed: copied at branches, joined behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.syntax.python.values import Event, Library, Object, Ref, Unknown, joined, refs_of, same

MOST_STEPS = 250_000
"""Expressions and objects handled; more is no training script."""
DATA = ("list", "dict", "set", "instance")
MISSING = object()


class Heap:
    """Objects by number; objects that a copy shares are copied before they are changed."""

    def __init__(self) -> None:
        self.objects: dict[int, Object] = {}
        self.owned: set[int] = set()

    def fork(self) -> Heap:
        """A copy for another branch."""
        other = Heap()
        other.objects = dict(self.objects)
        self.owned = set()
        return other

    def writable(self, id: int) -> Object:
        """An object that may be changed."""
        if id not in self.owned:
            self.objects[id] = self.objects[id].copy()
            self.owned.add(id)
        return self.objects[id]


class Memory:
    """The current heap, None behind a return, and the log of what is written."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.live: Heap | None = Heap()
        self.logs: list[set[tuple[int, Any]]] = []
        self.steps = 0
        self.last_id = 0

    def step(self, number: int = 1) -> None:
        """Count work.

        Raises:
            ConfigError: if it is too much.
        """
        self.steps += number
        if self.steps > MOST_STEPS:
            raise ConfigError(f"{self.where}: is too long to be followed; give the command or a configuration file")

    @property
    def heap(self) -> Heap:
        """The current heap."""
        assert self.live is not None
        return self.live

    def fork(self) -> Heap:
        """A copy of the current heap."""
        self.step(1 + len(self.heap.objects) // 8)
        return self.heap.fork()

    def new(self, kind: str, **fields: Any) -> Ref:
        """A new object."""
        self.last_id += 1
        self.heap.objects[self.last_id] = Object(kind, **fields)
        self.heap.owned.add(self.last_id)
        return Ref(self.last_id)

    def at(self, ref: Ref | int) -> Object:
        """An object, to be read."""
        return self.heap.objects[ref.id if isinstance(ref, Ref) else ref]

    def change(self, id: int, key: Any) -> Object:
        """An object to be changed at a key; ``*`` for all of it."""
        for log in self.logs:
            log.add((id, key))
        return self.heap.writable(id)

    def put(self, id: int, key: Any, value: Any) -> None:
        """Set a name, key or attribute."""
        item = self.change(id, key)
        if key in item.spoiled or "*" in item.spoiled:
            value = Unknown(str(key), refs_of([value, item.slots.get(key)]))
        elif item.used:
            value = Unknown(f"{key}, set after it was used", refs_of([value]))
        is_there = isinstance(value, Unknown) and value.is_maybe
        item.slots[key] = replace(value, is_maybe=False) if is_there else value

    def lose(self, id: int, key: Any, text: str = "") -> None:
        """Make a key's value unknown; all content for ``*``."""
        item = self.change(id, key)
        if key != "*":
            value = item.slots.get(key)
            if not isinstance(value, Unknown) or not value.is_maybe:
                item.slots[key] = Unknown(text or str(key), refs_of([value]), is_maybe=True)
            return
        item.is_open = text or "its content"
        if item.items is not None:
            item.slots["\0lost"] = Unknown(item.is_open, refs_of([*item.items, item.slots.get("\0lost")]))
            item.items = None
        for name, value in item.slots.items():
            if not isinstance(value, Unknown):
                item.slots[name] = Unknown(str(name), refs_of([value]))

    def content(self, id: int) -> frozenset[int]:
        """Objects that an object holds."""
        item = self.at(id)
        return refs_of([*item.slots.values(), *(item.items or [])])

    def reachable(self, ids: Iterable[int]) -> set[int]:
        """Containers and instances that can be reached from objects."""
        reached: set[int] = set()
        waiting = [id for id in ids if id in self.heap.objects]
        while waiting:
            id = waiting.pop()
            if id in reached or id not in self.heap.objects or self.at(id).kind not in DATA:  # of a path that ended
                continue
            self.step()
            reached.add(id)
            waiting += self.content(id)
        return reached

    def lose_all(self, values: Iterable[Any], text: str) -> None:
        """Make the content of what values may be unknown: something that is not followed may change it."""
        for id in self.reachable(refs_of(value for value in values if not self._is_aside(value))):
            self.lose(id, "*", text)

    def _is_aside(self, value: Any) -> bool:
        """Whether it is a part of a library's objects that holds none of their arguments: ``trainer.state``."""
        if not isinstance(value, Unknown) or not value.path.startswith("."):
            return False
        objects = [self.at(id) for id in value.refs if id in self.heap.objects]
        return all(item.kind == "instance" and isinstance(item.cls, Library) and not item.is_open for item in objects)

    # -- branches ------------------------------------------------------------------------------------------------------

    def join(self, left: Heap | None, right: Heap | None) -> Heap | None:
        """The heap behind two branches."""
        if left is None or right is None or left is right:
            return left or right
        self.step(1 + (len(left.objects) + len(right.objects)) // 8)
        result = Heap()
        result.objects = left.objects | right.objects
        for id, one in left.objects.items():
            other = right.objects.get(id)
            if other is None or other is one:
                continue
            result.objects[id] = self._joined(one, other)
        left.owned, right.owned = set(), set()
        return result

    def _joined(self, one: Object, other: Object) -> Object:
        both = one.copy()
        self.step(len(one.slots) + len(other.slots))
        for key in one.slots.keys() | other.slots.keys():
            left, right = one.slots.get(key, MISSING), other.slots.get(key, MISSING)
            if left is MISSING or right is MISSING:
                value = right if left is MISSING else left
                text = value.text if isinstance(value, Unknown) else str(key)
                both.slots[key] = Unknown(text, refs_of([value]), is_maybe=True)
            else:
                both.slots[key] = joined(left, right, str(key))
        both.slots = {key: both.slots[key] for key in [*one.slots, *(k for k in other.slots if k not in one.slots)]}
        if (one.items is None) != (other.items is None) or not _all_same(one.items or [], other.items or []):
            both.items = None
            both.slots["\0lost"] = Unknown("its items", refs_of([*(one.items or []), *(other.items or [])]))
            both.is_open = "its items"
        both.is_open = both.is_open or one.is_open or other.is_open
        both.spoiled = one.spoiled | other.spoiled
        both.used = one.used or other.used
        both.history = _joined_histories(one.history, other.history)
        return both


def _all_same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))


def _joined_histories(one: tuple[Event, ...], other: tuple[Event, ...]) -> tuple[Event, ...]:
    """Events of both branches; those of one branch may not happen."""
    if one == other:
        return one
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    rest = [event._replace(certain=False) for event in (*one[common:], *other[common:])]
    return one[:common] + tuple(dict.fromkeys(rest))
