"""What a shell script consists of: words made of parts, commands made of words, lists made of commands."""

from __future__ import annotations

from dataclasses import field

from vramplan.dataclass import dataclass

UNKNOWN = "\ue000"
"""Marks the part of a value that only a running shell knows."""
Span = tuple[int, int]
"""Begin and end in a text, in characters."""


@dataclass(frozen=True, slots=True)
class Text:
    """Characters that stand for themselves."""

    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """``$NAME`` and ``${NAME...}``."""

    source: str
    quoted: bool
    name: str
    prefix: str = ""
    """``#`` for a length, ``!`` for an indirect expansion."""
    index: Word | None = None
    operator: str = ""
    argument: Word | None = None


@dataclass(frozen=True, slots=True)
class Substitution:
    """``$(...)`` and its older spelling in backquotes."""

    source: str
    quoted: bool
    body: Sequence


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``$((...))``."""

    source: str
    quoted: bool
    inner: Word


@dataclass(frozen=True, slots=True)
class Opaque:
    """An expansion whose value is not worked out: a process substitution, a pattern, braces."""

    source: str
    quoted: bool = False
    body: Sequence | None = None
    fails: bool = False
    """Whether bash stops at it with an error."""


Part = Text | Parameter | Substitution | Arithmetic | Opaque


@dataclass(frozen=True, slots=True)
class Word:
    """A word before its expansion."""

    parts: tuple[Part, ...]
    begin: int
    end: int

    @property
    def literal(self) -> str | None:
        """The word's text if it is unquoted and holds no expansion: reserved words are recognised by it."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Text) and not self.parts[0].quoted:
            return self.parts[0].text
        return None


@dataclass(frozen=True, slots=True)
class Assignment:
    """``NAME=value``, ``NAME+=value``, ``NAME[index]=value``, ``NAME=(values)``."""

    name: str
    index: Word | None
    appends: bool
    value: Word | tuple[ArrayItem, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class ArrayItem:
    """``value`` or ``[index]=value`` in an array."""

    word: Word
    indexed: bool


@dataclass(frozen=True, slots=True)
class Redirect:
    """``2> file``, ``<<< word``, a here-document."""

    operator: str
    descriptor: str
    target: Word
    document: list[Word] = field(default_factory=list)
    """The text of a here-document, once it has been read."""


@dataclass(frozen=True, slots=True)
class Simple:
    """Assignments, words and redirections."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word | Assignment, ...]
    redirects: tuple[Redirect, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """``a | b``, ``! a``."""

    parts: tuple[Node, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class AndOr:
    """``a && b || c``."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    """Commands one after the other, each with whether it runs in the background."""

    items: tuple[tuple[Node, bool], ...]


@dataclass(frozen=True, slots=True)
class If:
    """``if``, ``elif``, ``else``."""

    branches: tuple[tuple[Sequence, Sequence], ...]
    otherwise: Sequence | None


@dataclass(frozen=True, slots=True)
class While:
    """``while`` and ``until``; also ``for ((...))`` behind its first expression."""

    condition: Node
    negated: bool
    body: Sequence
    step: Node | None = None


@dataclass(frozen=True, slots=True)
class For:
    """``for NAME in words`` and ``select``; without words, the arguments."""

    name: str
    words: tuple[Word, ...] | None
    body: Sequence
    selects: bool


@dataclass(frozen=True, slots=True)
class Case:
    """``case``; each item has its patterns, its commands and how it ends."""

    subject: Word
    items: tuple[tuple[tuple[Word, ...], Sequence, str], ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function's definition."""

    name: str
    body: Node


@dataclass(frozen=True, slots=True)
class Subshell:
    """``( ... )``; a coprocess too."""

    body: Sequence


@dataclass(frozen=True, slots=True)
class Conditional:
    """``[[ ... ]]``: its words; operators are plain texts."""

    items: tuple[Word | str, ...]


@dataclass(frozen=True, slots=True)
class Calculation:
    """``(( ... ))``."""

    inner: Word


@dataclass(frozen=True, slots=True)
class Redirected:
    """A compound command with redirections."""

    body: Node
    redirects: tuple[Redirect, ...]


Node = (
    Simple | Pipeline | AndOr | Sequence | If | While | For | Case | Function | Subshell | Conditional | Calculation
    | Redirected
)  # fmt: skip


@dataclass(slots=True)
class Command:
    """One simple command."""

    words: list[str]
    line: int
    environment: dict[str, str] = field(default_factory=dict)
    """Variables exported to it."""
    unexported: dict[str, str] = field(default_factory=dict)
    """Variables of the shell that are not exported to it."""
    spans: list[Span] = field(default_factory=list)
    """The place of each word in the text; words from one expansion share a place."""
    removed: frozenset[str] = frozenset()
    """Variables of the environment that the script takes away from it."""
    folder: str = "."
    """The working folder, relative to the script's start; contains `UNKNOWN` if it is not known."""
    sourced: str = ""
    """A command before it that may have set any variable (``source env.sh``); empty if there is none."""
    split: frozenset[int] = frozenset()
    """The words that may be any number of words: unquoted expansions that are not known."""
    substituted: bool = False
    """Whether it stands in ``$(...)``."""
