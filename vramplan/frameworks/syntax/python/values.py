"""What a name in a script may stand for: plain values, objects on a heap, names of libraries, and what is not known."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import field
from typing import Any, NamedTuple

from vramplan.dataclass import dataclass

LONGEST = 100_000
"""Characters or items of a value; longer ones are not settings."""
LARGEST = 1 << 62
"""Larger numbers are not settings."""
PLAIN = (bool, int, float, str, bytes, type(None))


class Ref(NamedTuple):
    """An object on the heap."""

    id: int


class Library(NamedTuple):
    """A name of a library, or one that the script does not define: ``torch.bfloat16``."""

    name: str

    @property
    def last(self) -> str:
        """Its last part."""
        return self.name.rpartition(".")[2]


class FilePath(NamedTuple):
    """A ``pathlib.Path``."""

    text: str


class Module(NamedTuple):
    """A module of the script's own."""

    name: str
    """Dotted."""
    scope: int
    """The scope that holds its names."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only a run would tell."""

    text: str
    refs: frozenset[int] = frozenset()
    """Objects that it may be, or that may be reached through it."""
    path: str = ""
    """How it is reached from such an object: ``.config``, ``.parameters()[]``."""
    is_library: bool = False
    """Whether a library made it, whose methods leave alone what they are given."""
    is_maybe: bool = False
    """Whether the key or name may be missing."""

    def part(self, text: str, step: str) -> Unknown:
        """Something that is reached through it."""
        path = f"{self.path}{step}"[:200] if self.refs or self.path else ""
        return Unknown(text, self.refs, path, self.is_library)


@dataclass(frozen=True, eq=False, slots=True)
class Function:
    """A function of the script."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    env: int
    """Scope that it was defined in."""
    defaults: tuple[Any, ...]
    keyword_defaults: tuple[Any, ...]
    owner: int | None = None
    """Class that it is a method of."""
    kind: str = ""
    """staticmethod, classmethod or property."""
    wrapper: str = ""
    """A decorator that is not followed: it may call with other arguments, and return something else."""
    options: tuple[tuple[str, Any], ...] = ()
    """Defaults of click's options."""


class Bound(NamedTuple):
    """A method of a value."""

    receiver: Any
    name: str
    function: Function | None = None


class Attributes(NamedTuple):
    """``vars(object)``: an object's attributes as a dictionary."""

    id: int


class Super(NamedTuple):
    """``super()``."""

    id: int
    """The object."""
    owner: int
    """The class in whose method it stands."""


class Event(NamedTuple):
    """What was done with a library's object after it was constructed."""

    name: str
    """``.float`` for a method; ``.config.use_cache=`` for an attribute that was set; ``peft.get_peft_model`` for a
    function that it was passed to."""
    call: Any
    certain: bool


@dataclass(slots=True)
class Object:
    """Something on the heap: a scope, a container, an instance, a class."""

    kind: str
    """scope, list, dict, set, instance, class or parser."""
    slots: dict[Any, Any] = field(default_factory=dict)
    """Names, keys or attributes."""
    items: list[Any] | None = None
    """Of a list or set."""
    cls: Any = None
    """An instance's class: a Ref or a Library."""
    is_open: str = ""
    """Why it may hold anything; empty if all of its content is known."""
    spoiled: frozenset[Any] = frozenset()
    """Keys that stay unknown whatever is assigned; ``*`` for all."""
    history: tuple[Event, ...] = ()
    call: Any = None
    """The call that constructed a library's object."""
    parent: int | None = None
    """The scope around a scope."""
    node: Any = None
    """A class's or a function's syntax."""
    names: frozenset[str] = frozenset()
    """Of a function's scope: the names that it binds."""
    outer: dict[str, str] = field(default_factory=dict)
    """Of a function's scope: names declared ``global`` or ``nonlocal``."""
    used: str = ""
    """Where a trainer took it; what is set afterwards may not have an effect."""

    def copy(self) -> Object:
        """A copy that can be changed."""
        return Object(
            self.kind, dict(self.slots), None if self.items is None else list(self.items), self.cls, self.is_open,
            self.spoiled, self.history, self.call, self.parent, self.node, self.names, self.outer, self.used,
        )  # fmt: skip


def refs_of(values: Iterable[Any]) -> frozenset[int]:
    """Objects that values are or may be."""
    refs: set[int] = set()
    waiting, steps = list(values), 0
    while waiting and steps < LONGEST:
        value, steps = waiting.pop(), steps + 1
        if isinstance(value, (Ref, Attributes, Super)):
            refs.add(value.id)
        elif isinstance(value, Unknown):
            refs |= value.refs
        elif isinstance(value, Bound):
            waiting.append(value.receiver)
        elif isinstance(value, tuple) and not isinstance(value, (Library, FilePath, Module)):
            waiting += value
    return frozenset(refs)


def joined(left: Any, right: Any, text: str) -> Any:
    """The value of a name that two paths bind."""
    if left is right or same(left, right):
        return left
    texts = [value.text for value in (left, right) if isinstance(value, Unknown)]
    paths = [value.path for value in (left, right) if isinstance(value, Unknown)]
    maybe = any(isinstance(value, Unknown) and value.is_maybe for value in (left, right))
    unknown = [value for value in (left, right) if isinstance(value, Unknown)]
    is_library = len(unknown) == 2 and all(value.is_library for value in unknown)
    return Unknown(texts[0] if texts else text, refs_of([left, right]), paths[0] if paths else "", is_library, maybe)


def is_maybe(value: Any) -> bool:
    """Whether a key with this value may be missing."""
    return isinstance(value, Unknown) and value.is_maybe


def same(left: Any, right: Any) -> bool:
    """Whether two values are known to be the same; 1, 1.0 and True are not."""
    if type(left) is not type(right):
        return False
    if type(left) is tuple:
        small = len(left) == len(right) and weight(left) < LONGEST
        return small and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)


def weight(value: Any) -> int:
    """Number of the values in nested tuples, counted up to a limit."""
    total, waiting = 0, [value]
    while waiting and total < LONGEST:
        top = waiting.pop()
        total += 1
        if type(top) is tuple:
            waiting += top[: LONGEST - total]
    return total


def is_known(value: Any) -> bool:
    """Whether it is a plain value."""
    return isinstance(value, PLAIN) or (type(value) is tuple and all(is_known(item) for item in value))
