"""What a script was followed to: its calls, the objects that it trains with, and its imports."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.frameworks.settings import ConfigValue


@dataclass(slots=True, eq=False)
class Call:
    """One call, with the values of its arguments."""

    name: str
    """Dotted: transformers.AutoModelForCausalLM.from_pretrained; a method of an unknown object begins with a dot."""
    line: int
    place: str
    positional: list[Any] = field(default_factory=list)
    keywords: dict[str, ConfigValue] = field(default_factory=dict)
    certain: bool = True
    """Whether every run of the script makes it."""
    refs: dict[Any, tuple[tuple[int, ...], bool]] = field(default_factory=dict)
    """Objects of libraries among the arguments, by number on the heap, and whether the argument is just that."""
    overrides: tuple[str, ...] = ()
    """Methods and fields that the script's own subclass defines."""
    subclass: str = ""
    """Name of that subclass."""
    from_command: str = ""
    """Where the script takes its values from the command's flags, and the command is not known."""
    condition: str = ""
    """The test of the ``if`` that it stands under, if its result is not known."""

    @property
    def last(self) -> str:
        """Last part of its name."""
        return self.name.rpartition(".")[2]


@dataclass(slots=True, eq=False)
class Thing:
    """A library's object: the call that constructed it with the values that it has in the end, and what was done."""

    call: Call
    history: list[tuple[str, Call, bool]] = field(default_factory=list)
    """(what was done, the call, whether it surely happens): ``.float``, ``peft.get_peft_model``, ``.config.x=``."""
    parts: dict[Any, list[Thing]] = field(default_factory=dict)
    """Objects among its arguments."""
    is_certain: dict[Any, bool] = field(default_factory=dict)
    """Whether an argument is surely that object."""
    is_lost: str = ""
    """Why its attributes may have any value."""


@dataclass(slots=True, eq=False)
class Training:
    """One ``trainer.train()``."""

    place: str
    certain: bool
    trainer: Thing


@dataclass(slots=True)
class Script:
    """The calls and imports of a script."""

    where: str
    calls: list[Call] = field(default_factory=list)
    unreached: list[Call] = field(default_factory=list)
    """Calls in functions that nothing seems to call."""
    imports: set[str] = field(default_factory=set)
    """Packages, by their first part."""
    files: dict[str, str | None] = field(default_factory=dict)
    """Texts of files that it writes; None if they are not known."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables as it leaves them, where that is known."""
    names: set[str] = field(default_factory=set)
    """Names that it assigns, imports or takes as parameters, wherever that is."""
    read: dict[str, str] = field(default_factory=dict)
    """Files that it reads, and where."""
    missing: list[str] = field(default_factory=list)
    """Why files that it reads are not known."""
    required: list[str] = field(default_factory=list)
    """Flags that its command has to have, if it is read without one."""
    has_argparse: bool = False
    """Whether it takes its arguments by argparse, not by transformers' or TRL's parser."""
    ends_at: str = ""
    """Where every run ends early with an exception, and the exception."""
    trainings: list[Training] = field(default_factory=list)
    things: list[Thing] = field(default_factory=list)
    """Objects of libraries as they are in the end."""
    objects: dict[int, Thing] = field(default_factory=dict)
    """The same by their numbers on the heap, as :attr:`Call.refs` has them."""

    def named(self, *names: str) -> list[Call]:
        """Calls by the last part of their names."""
        return [call for call in self.calls if call.last in names]
