"""How commands declare options and arguments: as data, without typer.

    def gpus(search: Annotated[str, Argument(help="...")] = "", as_json: Annotated[bool, Option("--json", ...)] = False)

:mod:`vramplan.cli.parse` reads well-formed command lines from it, :mod:`vramplan.cli.typer_app` declares the same to
typer, which does the rest: help, messages about mistakes, completion.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin

if TYPE_CHECKING:
    from vramplan.cli.completion import Completion


class Described:
    """What the help page says about a parameter, and what the shell completes."""

    def __init__(
        self,
        *names: str,
        help: str,
        panel: str | None = None,
        metavar: str | None = None,
        min: int | None = None,
        shows_default: bool = True,
        complete: Completion | None = None,
    ) -> None:
        self.names, self.help, self.panel, self.metavar, self.min = names, help, panel, metavar, min
        self.shows_default, self.complete = shows_default, complete


class Option(Described):
    """An option, named ``--`` and its parameter's name unless `names` are given.

    `panel` is its group on the help page, `min` its smallest value.
    """


class Argument(Described):
    """A positional argument."""


class Rest(Argument):
    """The rest of the line from the first positional argument on, its options too: another command."""


class Parameter(NamedTuple):
    """A parameter of a command."""

    name: str
    type: type
    """str, int, float, bool or Path; of each item if `is_list`."""
    is_list: bool
    default: Any
    described: Described

    @property
    def is_required(self) -> bool:
        """Whether a command line must hold it."""
        return self.default is inspect.Parameter.empty

    @property
    def names(self) -> tuple[str, ...]:
        """The option's spellings; empty for an argument."""
        if isinstance(self.described, Argument):
            return ()
        return self.described.names or (f"--{self.name.replace('_', '-')}",)


def declared(command: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a command, their annotations evaluated."""
    return inspect.signature(command, eval_str=True).parameters


def parameter_of(declaration: inspect.Parameter) -> Parameter:
    """A parameter from ``Annotated[type, Option(...)]``, where the type may be ``type | None`` or ``list[type]``."""
    hint, described = get_args(declaration.annotation)
    is_list = False
    while get_args(hint):
        is_list = is_list or get_origin(hint) is list
        hint = get_args(hint)[0]
    return Parameter(declaration.name, hint, is_list, declaration.default, described)
