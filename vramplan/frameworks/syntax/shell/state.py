"""What is known of a running script at one place: variables, functions, arguments, status."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field, replace

from vramplan.dataclass import dataclass
from vramplan.frameworks.syntax.shell.arithmetic import NAMES, is_refused
from vramplan.frameworks.syntax.shell.tree import UNKNOWN, Node

SHOWN = 60
"""Characters of an expansion's text that a value which is not known shows."""
SPECIAL = frozenset({
    "RANDOM", "SRANDOM", "SECONDS", "LINENO", "BASHPID", "EPOCHSECONDS", "EPOCHREALTIME", "PPID", "UID", "EUID",
    "HOSTNAME", "OSTYPE", "MACHTYPE", "HOSTTYPE", "SHLVL", "PWD", "OLDPWD", "FUNCNAME", "DIRSTACK",
    "PIPESTATUS", "GROUPS", "OPTIND", "OPTARG", "REPLY", "_", "SHELLOPTS", "BASHOPTS", "PATH", "TERM",
    "COLUMNS", "LINES", "BASH", "BASH_VERSION", "BASH_VERSINFO", "BASH_SOURCE", "BASH_LINENO", "BASH_REMATCH",
    "BASH_ARGV", "BASH_ARGC", "BASH_ARGV0", "BASH_COMMAND", "BASH_SUBSHELL", "BASH_EXECUTION_STRING",
    "BASH_CMDS", "BASH_ALIASES", "BASH_OPTS", "COPROC", "COPROC_PID", "COMP_WORDBREAKS", "HISTCMD", "MAPFILE",
    "PS4", "OPTERR",
})  # fmt: skip
"""Variables that bash itself sets."""
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
DEFAULT_IFS = " \t\n"


@dataclass(frozen=True, slots=True)
class Array:
    """An indexed array without gaps, or the arguments of a script or function."""

    items: tuple[str, ...] = ()
    split: frozenset[int] = frozenset()
    """Items that may be any number of items."""


Value = str | Array


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that a script or the environment sets, or that the script has unset."""

    value: Value | None
    exported: bool | None = False
    """None if it is on some paths only."""
    integer: bool = False
    readonly: bool = False
    odd: bool = False
    """Whether its attributes change what is assigned to it."""


def unknown(source: str) -> str:
    """A value that only a run tells, with the text of the expansion that it comes from; it has no blanks."""
    text = re.sub(r"\s+", "\u00a0", source.replace(UNKNOWN, "").strip()[: SHOWN + 1])
    return UNKNOWN + (text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}...")


def unknown_array(name: str) -> Array:
    """An array of which nothing is known."""
    return Array((unknown(f"${name}"),), frozenset({0}))


def is_known(value: Value | None) -> bool:
    """Whether no part of a value is unknown."""
    if isinstance(value, Array):
        return not value.split and all(UNKNOWN not in item for item in value.items)
    return value is None or UNKNOWN not in value


@dataclass(slots=True)
class State:
    """What is known at one place of a script."""

    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, tuple[Node | None, ...]] = field(default_factory=dict)
    """What a name may stand for; None is a program or builtin of that name."""
    arguments: Array | None = None
    """None for those of the script itself."""
    status: int | None = 0
    presumed: bool | None = None
    """Whether the last command succeeds if no variable is set but by the script, where that is a presumption."""
    folder: str = "."
    options: frozenset[str] = frozenset()
    sourced: str = ""
    """A command that may have set any variable."""
    lost: bool = False
    """Whether any variable may change at any time."""
    output: str | None = None
    """What was written so far, where it is read."""
    input: str | None = None
    """What commands read, where it is known."""

    def copy(self) -> State:
        """A state that changes on its own."""
        return replace(self, variables=dict(self.variables), functions=dict(self.functions))

    def lookup(self, name: str) -> Value | None:
        """A variable's value; None if it is not set."""
        if self.lost or name in SPECIAL:
            return unknown(f"${name}")
        variable = self.variables.get(name)
        if variable is None:
            return unknown(f"${name}") if self.sourced else None
        return variable.value

    def is_never_set(self, name: str) -> bool:
        """Whether neither the script nor the environment has set or unset a variable."""
        return name not in self.variables and not self.lost and name not in SPECIAL

    def operands(self, expression: str) -> list[str]:
        """The values of the variables that an arithmetic expression names."""
        names = NAMES.findall(re.sub(rf"{UNKNOWN}\S*", "", expression))
        values = [self.lookup(name) for name in set(names)]
        items = [value.items[0] if isinstance(value, Array) and value.items else value for value in values]
        return [item for item in items if isinstance(item, str)]

    @property
    def separators(self) -> str | None:
        """IFS; None if it is not known."""
        if self.lost or "IFS" not in self.variables:
            return None if self.lost else DEFAULT_IFS
        value = self.variables["IFS"].value
        if value is None:
            return DEFAULT_IFS
        return value if isinstance(value, str) and UNKNOWN not in value else None

    @property
    def exports(self) -> bool | None:
        """Whether what is assigned is exported (``set -a``); None if that is not known."""
        return None if "perhaps allexport" in self.options else "allexport" in self.options

    def new_variable(self) -> Variable:
        """A variable that has no value yet."""
        return Variable(None, exported=self.exports)

    def store(self, name: str, value: Value | None, exported: bool | None = None) -> None:
        """Assign to a variable; attributes stay."""
        old = self.variables.get(name, self.new_variable())
        if old.readonly:  # an error, behind which bash skips an unknown number of commands
            self.lost = True
        if isinstance(old.value, Array) and isinstance(value, str):  # the first item is assigned to
            rest = (
                ((unknown(f"${name}"),), frozenset({1})) if old.value.split else (old.value.items[1:], frozenset[int]())
            )
            value = Array((value, *rest[0]), rest[1])
        is_number = not isinstance(value, str) or re.fullmatch(r"0|-?[1-9]\d*", value, re.ASCII)
        if old.integer and isinstance(value, str) and is_refused(value):  # bash leaves loops, branches and functions
            self.lost = True
        if (old.odd and value is not None) or (old.integer and not is_number):
            value = unknown(f"${name}")
        if exported is None:
            exported = old.exported if old.exported or self.exports is False else self.exports
        self.variables[name] = replace(old, value=value, exported=exported)

    def forget(self, names: Iterable[str], source: str = "") -> None:
        """Make variables unknown."""
        for name in names:
            old = self.variables.get(name, self.new_variable())
            value: Value = unknown(source or f"${name}")
            if isinstance(old.value, Array):  # it stays an array
                value = unknown_array(name)
            exported = old.exported or (None if self.exports is not False else old.exported)
            self.variables[name] = replace(old, value=value, exported=exported)

    def forget_all(self, source: str, separators: bool = True) -> None:
        """Make every variable unknown behind a command that may have set any."""
        former = self.variables.get("IFS")
        self.forget(list(self.variables))
        if not separators:
            self.variables.pop("IFS", None)
            if former is not None:
                self.variables["IFS"] = former
        elif "IFS" not in self.variables:
            self.forget(["IFS"])
        self.sourced = source
        self.arguments = Array((unknown("$@"),), frozenset({0}))
        self.folder = unknown("$PWD")
        self.set_status(None)

    def set_status(self, status: int | None, presumed: bool | None = None) -> None:
        """The last command's exit status; None if it is not known."""
        self.status, self.presumed = status, presumed

    def write(self, text: str | None) -> None:
        """A command's output; None if it is not known."""
        self.output = None if text is None or self.output is None else self.output + text


def join(first: State | None, second: State | None) -> State | None:
    """What is known if either may be the case; None is a place that is not reached."""
    if first is None or second is None:
        return second if first is None else first
    variables = {}
    for name in first.variables.keys() | second.variables.keys():
        variable = _join_variables(name, first.variables.get(name), second.variables.get(name))
        if variable is not None:
            variables[name] = variable
    functions = {}
    for name in first.functions.keys() | second.functions.keys():
        both = (*first.functions.get(name, (None,)), *second.functions.get(name, (None,)))
        functions[name] = tuple({id(body): body for body in both}.values())
    arguments = first.arguments
    if arguments != second.arguments:
        arguments = Array((unknown("$@"),), frozenset({0}))
    return State(
        variables, functions, arguments,
        first.status if first.status == second.status else None,
        first.presumed if first.presumed == second.presumed else None,
        first.folder if first.folder == second.folder else unknown("$PWD"),
        _join_options(first.options, second.options),
        first.sourced or second.sourced,
        first.lost or second.lost or bool((first.options ^ second.options) & {"noglob", "lastpipe"}),
        first.output if first.output == second.output else None,
        first.input if first.input == second.input else None,
    )  # fmt: skip


def _join_options(first: frozenset[str], second: frozenset[str]) -> frozenset[str]:
    differs = "allexport" in first ^ second
    return (first | second) - {"allexport"} | {"perhaps allexport"} if differs else first | second


def _join_variables(name: str, first: Variable | None, second: Variable | None) -> Variable | None:
    if first == second:
        return first
    if first is None or second is None:
        other = first or second
        if other is None or (
            other.value is None and not other.exported and not other.odd and not other.integer and not other.readonly
        ):
            return None
        first = first or Variable(None)
        second = second or Variable(None)
        same = False
    else:
        same = first.value == second.value
    value: Value | None = first.value if same else unknown(f"${name}")
    if not same and (isinstance(first.value, Array) or isinstance(second.value, Array)):
        value = unknown_array(name)
    alike = (first.integer, first.odd) == (second.integer, second.odd)
    return Variable(
        value,
        first.exported if first.exported == second.exported else None,
        first.integer,
        first.readonly or second.readonly,
        first.odd or not alike,
    )
