"""The base of the machine that follows a script: scopes, names, and the calls that it records."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vramplan.bounded_read import is_file
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.python.memory import MISSING, MOST_STEPS, Heap, Memory
from vramplan.frameworks.syntax.python.script import Call, Script
from vramplan.frameworks.syntax.python.trusted import TRUSTED
from vramplan.frameworks.syntax.python.values import (
    Attributes,
    Bound,
    Event,
    FilePath,
    Function,
    Library,
    Ref,
    Unknown,
    is_known,
    refs_of,
)
from vramplan.frameworks.syntax.shell import UNKNOWN
from vramplan.inputs.gpu import Gpu

BUILTINS = frozenset(dir(builtins))
CHANGING = ("operator.", "random.shuffle", "collections.", "copy.replace", "inspect.", "gc.", "threading.", "pickle.")
"""Beginnings of the names of functions in them that may change what they are given."""
MOST_DEPTH = 24
MOST_TURNS = 64
"""Turns of nested loops that are gone through one by one."""


class Source(NamedTuple):
    """A file that syntax comes from; that of the script's own modules has it as `vramplan_source`."""

    where: str
    lines: list[str]


class Raised(Exception):
    """This path ends: an exception, or the end of the script."""


class Frame:
    """A call of a function of the script, or one of its modules, with the paths on which it has returned."""

    def __init__(self, scope: int, function: Any = None, is_module: bool = False) -> None:
        self.scope, self.function, self.is_module = scope, function, is_module
        self.returns: list[tuple[Any, Heap]] = []
        self.log: set[tuple[int, Any]] = set()
        self.has_recursed = False


class Machine(Memory):
    """What the parts of the machine share; each part is a class that adds to the one before it."""

    def __init__(
        self,
        source: str,
        where: str,
        flags: Mapping[str, ConfigValue] | None,
        gpu: Gpu | None,
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] | None = None,
    ) -> None:
        super().__init__(where)
        self.arguments = arguments
        self.source = Source(where, source.splitlines())
        self.modules: dict[str, int | None] = {}
        """Scopes of the script's own modules, by file; None for a module that cannot be followed."""
        self.files: dict[int, str] = {}
        """Files of these scopes."""
        self.flags, self.gpu = flags or {}, gpu
        self.is_alone = flags is None
        """Whether the script is read without its command."""
        self.script = Script(where)
        self.main = self.new("scope").id
        """The script's own scope."""
        self.environ = self.new("dict", cls="environ", slots=dict(environment or {}))
        self.frames = [Frame(self.main)]
        self.certain = True
        self.condition = ""
        """The test of the innermost ``if`` whose body is followed, if its result is not known."""
        self.ended: Heap | None = None
        """The heap where a path ended last."""
        self.raised = ""
        """The exception that was raised last, and where."""
        self.turns = 1
        """Turns of the loops that are gone through one by one, multiplied."""
        self.guesses: dict[ast.AST, set[tuple[int | None, Any]]] = {}
        """What a loop was seen to write."""
        self.loops: list[tuple[list[Heap], list[Heap]]] = []
        self.owners: dict[int, int] = {}
        """Class that a method's syntax stands in."""
        self.stars: dict[int, list[str]] = {}
        """Packages whose names a module imports by ``*``, by its scope."""
        self.deferred: set[str] = set()
        """Files whose annotations are texts: ``from __future__ import annotations``."""
        self.things: list[int] = []
        self.commands: dict[str, Any] = {}
        """Functions of the script that an object calls with the command's flags: typer's and click's."""
        self.reached: set[ast.AST] = set()
        """Functions that were followed."""
        self.defined: list[Any] = []

    # -- the parts -----------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr | None) -> Any:
        """The value of an expression."""
        raise NotImplementedError

    def truth(self, node: ast.expr) -> bool | None:
        """Whether an expression is true; None if it is not known."""
        raise NotImplementedError

    def block(self, body: Iterable[ast.stmt]) -> None:
        """Follow statements."""
        raise NotImplementedError

    def apply(
        self, function: Any, positional: list[Any], keywords: dict[str, Any], node: ast.AST, spread: Any = None
    ) -> Any:
        """What a call returns."""
        raise NotImplementedError

    def iterated(self, value: Any) -> list[Any] | None:
        """What iterating over a value yields; None if it is not known, or is much."""
        raise NotImplementedError

    def bind(self, target: ast.expr, value: Any) -> None:
        """Assign a value."""
        raise NotImplementedError

    def most_turns(self) -> int:
        """Turns of nested loops that are gone through one by one; few if much has been followed already."""
        share = 1 if self.steps < MOST_STEPS // 5 else 8 if self.steps < MOST_STEPS // 3 else 64
        return MOST_TURNS // share if self.certain else MOST_TURNS // max(share, 8)

    # -- names ---------------------------------------------------------------------------------------------------------

    @property
    def scope(self) -> int:
        """The current scope."""
        return self.frames[-1].scope

    @property
    def module(self) -> int:
        """The scope of the module whose code is followed."""
        return self.module_of(self.scope)

    def module_of(self, scope: int) -> int:
        """The scope of the module that a scope is in."""
        while (parent := self.at(scope).parent) is not None:
            scope = parent
        return scope

    def lookup(self, name: str) -> Any:
        """The value of a name."""
        if name in ("__name__", "__file__"):
            return self._of_module(name)
        id: int | None = self.scope
        module = self.main
        is_first = True
        while id is not None:
            module = id
            scope = self.at(id)
            place = scope.outer.get(name)
            if place == "global":
                id = module = self.module
                scope = self.at(id)
            if (is_first or scope.cls != "class") and place != "nonlocal":
                value = scope.slots.get(name, MISSING)
                if value is not MISSING:
                    return value
                if name in scope.names:
                    return Unknown(name)
            is_first = is_first and scope.cls == "comprehension"
            id = scope.parent
        if name in BUILTINS:
            return Library(f"builtins.{name}")
        stars = self.stars.get(module)
        return Library(f"{stars[-1]}.{name}" if stars else name)

    def _of_module(self, name: str) -> Any:
        """``__name__`` or ``__file__`` where the code stands that is followed."""
        module = self.module
        if name == "__name__":
            return "__main__" if module == self.main else Path(self.files[module]).stem
        file = Path(self.where if module == self.main else self.files[module])
        return str(file.absolute()) if file.suffix == ".py" and is_file(file) else Unknown(name)

    def scope_of(self, name: str, scope: int | None = None) -> int:
        """The scope that an assignment of a name writes to."""
        id = self.scope if scope is None else scope
        while self.at(id).cls == "comprehension":
            id = self.at(id).parent or self.module
        place = self.at(id).outer.get(name)
        if place == "global":
            return self.module
        if place == "nonlocal":
            parent = self.at(id).parent
            while parent is not None:
                if name in self.at(parent).slots or name in self.at(parent).names:
                    return parent
                parent = self.at(parent).parent
        return id

    def assign(self, name: str, value: Any) -> None:
        """Bind a name in the current scope."""
        self.put(self.scope_of(name), name, value)

    # -- texts ---------------------------------------------------------------------------------------------------------

    def text(self, node: ast.AST) -> str:
        """An expression as the script writes it, shortened."""
        line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        lines = getattr(node, "vramplan_source", self.source).lines
        if not line or line > len(lines):
            return "a value"
        first = getattr(node, "col_offset", 0)
        whole = lines[line - 1]
        if not whole.isascii() and len(whole) > 2_000:
            return "a value"
        raw = whole[first : first + 200].encode() if whole.isascii() else whole.encode("utf-8", "replace")[first:]
        last = getattr(node, "end_col_offset", 0) - first if end == line else len(raw)
        text = raw[: min(last, 200)].decode("utf-8", "replace").strip()
        return text if end == line and len(text) < 60 else f"{text[:57].rstrip()}..."

    def unknown(self, node: ast.AST, *values: Any, path: str = "") -> Unknown:
        """A value that is not known, and may reach what the values are."""
        refs = refs_of(values)
        return Unknown(self.text(node), refs, path)

    def place(self, node: ast.AST) -> str:
        """File and line."""
        return f"{getattr(node, 'vramplan_source', self.source).where}:{getattr(node, 'lineno', 1)}"

    # -- records -------------------------------------------------------------------------------------------------------

    def plain(self, value: Any, text: str, left: list[int] | None = None) -> Any:
        """A value as data; a text with a mark if it is not known."""
        left = left or [5_000]
        left[0] -= 1
        self.step()
        mark = f"{UNKNOWN}{text}"
        if left[0] < 0:
            return mark
        if isinstance(value, (bool, int, float, str, type(None))):
            return value
        if isinstance(value, Library):
            return _constant(value, mark)
        if isinstance(value, FilePath):
            return value.text
        if isinstance(value, Unknown):
            return f"{UNKNOWN}{value.text}" if "set after" in value.text else mark
        if type(value) is tuple:
            items = [self.plain(item, text, left) for item in value]
            return mark if _has_mark(items) else items
        if isinstance(value, Attributes) or (isinstance(value, Ref) and self.at(value).kind in ("dict", "list", "set")):
            return self._plain_container(value.id, mark, text, left)
        return mark

    def _plain_container(self, id: int, mark: str, text: str, left: list[int]) -> Any:
        item = self.at(id)
        if item.is_open or left[0] < -1:
            return mark
        if item.items is not None:
            items = [self.plain(value, text, left) for value in item.items]
            return mark if _has_mark(items) else items
        pairs = {}
        for key, value in item.slots.items():
            if not is_known(key):
                return mark
            pairs[str(key)] = self.plain(value, f"{text}: {key}", left)
        return pairs

    def record(
        self,
        name: str,
        node: ast.AST,
        positional: list[Any],
        keywords: dict[str, Any],
        spread: Any = None,
        texts: Mapping[str, ast.AST] | None = None,
    ) -> Call:
        """A call with its arguments as data, and the objects among them."""
        place = self.place(node)
        call = Call(name, getattr(node, "lineno", 1), place, certain=self.certain, condition=self.condition)
        argument_nodes = node.args if isinstance(node, ast.Call) else []
        for number, value in enumerate(positional):
            shown = self.text(argument_nodes[number]) if number < len(argument_nodes) else self.text(node)
            call.positional.append(self.plain(value, shown))
            self._objects(call, number, value)
        for key, value in keywords.items():
            written = (texts or {}).get(key)
            line = self.place(written) if written is not None else place
            shown = f"{key}={self.text(written)}" if written is not None else key
            call.keywords[key] = ConfigValue(self.plain(value, shown), line)
            self._objects(call, key, value)
        if spread is not None:
            call.keywords["**"] = ConfigValue(f"{UNKNOWN}**{spread}", place)
        self.script.calls.append(call)
        return call

    def _objects(self, call: Call, key: Any, value: Any) -> None:
        refs = [id for id in refs_of([value]) if id in self.heap.objects and self.at(id).kind == "instance"]
        if refs:
            call.refs[key] = (tuple(sorted(refs)), isinstance(value, Ref))

    def happen(self, refs: Iterable[int], name: str, call: Call) -> None:
        """Add an event to the history of library objects."""
        for id in refs:
            if id in self.heap.objects and self.at(id).kind == "instance":
                item = self.change(id, "\0history")
                if len(item.history) < 500:
                    item.history += (Event(name, call, self.certain),)


def _constant(value: Library, mark: str) -> Any:
    """torch.bfloat16 and TaskType.CAUSAL_LM as texts."""
    owner, _, last = value.name.rpartition(".")
    if owner == "torch":
        return last
    return last if owner.rpartition(".")[2][:1].isupper() and last.isupper() else mark


def _has_mark(items: list[Any]) -> bool:
    return any(isinstance(item, str) and UNKNOWN in item for item in items)


def is_trusted(function: Any) -> bool:
    """Whether a function leaves alone what it is given."""
    if isinstance(function, Bound):
        return is_trusted(function.receiver) or is_known(function.receiver)
    if not isinstance(function, Library) or function.name.partition(".")[0] not in TRUSTED:
        return False
    return not function.name.startswith(CHANGING) and not (
        function.name.startswith("builtins.") and function.name.count(".") > 1
    )


__all__ = ["BUILTINS", "MOST_DEPTH", "Frame", "Function", "Machine", "Raised", "is_trusted"]
