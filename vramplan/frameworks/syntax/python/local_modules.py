"""Constants that a script imports from a module of its own: parsed as the script is, never executed."""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramplan.bounded_read import is_file
from vramplan.errors import VramplanError
from vramplan.frameworks.settings import is_unknown
from vramplan.frameworks.syntax.config_files import read_text
from vramplan.frameworks.syntax.lookup import beside
from vramplan.frameworks.syntax.python.trusted import TRUSTED
from vramplan.frameworks.syntax.python.values import PLAIN, Library, Ref

if TYPE_CHECKING:
    from vramplan.frameworks.syntax.python.machine import Machine

MOST_CHARACTERS = 60_000
MOST_NESTED = 3
"""Modules that import from one another."""
MOST_MODULES = 12


def constants_of(machine: Machine, module: str, level: int) -> dict[str, Any]:
    """Names of a module beside the script whose values are known; empty for libraries and where there is no such file.

    Objects, classes and functions of it stay unknown, as those of a library.
    """
    if (not level and module.partition(".")[0] in TRUSTED) or machine.nested >= MOST_NESTED or not module.strip("."):
        return {}
    path = _file(module.lstrip("."), level, Path(machine.where).parent)
    if path is None:
        return {}
    key = str(path)
    if key not in machine.local_modules:
        if len(machine.local_modules) >= MOST_MODULES:
            return {}
        machine.local_modules[key] = {}  # an import in a circle
        with suppress(VramplanError, SyntaxError, ValueError, RecursionError, MemoryError):
            machine.local_modules[key] = _constants(machine, path)
    return {name: _rebuilt(machine, value) for name, value in machine.local_modules[key].items()}


def _file(module: str, level: int, folder: Path) -> Path | None:
    for _ in range(level - 1):
        folder = folder.parent
    stem = module.replace(".", "/")
    for name in (f"{stem}.py", f"{stem}/__init__.py"):
        if is_file(folder / name):
            return folder / name
    return None if level else beside(f"{stem}.py", folder)


def _constants(machine: Machine, path: Path) -> dict[str, Any]:
    from vramplan.frameworks.syntax.python.follow import Follower
    from vramplan.frameworks.syntax.python_ast import parse

    text = read_text(path)
    if len(text) > MOST_CHARACTERS:
        return {}
    variables = {name: value for name, value in machine.at(machine.environ).slots.items() if isinstance(value, str)}
    other = Follower(text, str(path), {}, machine.gpu, variables)
    other.nested, other.local_modules = machine.nested + 1, machine.local_modules
    other.block(node for node in parse(text).body if not _is_aside(node))
    if other.live is None:
        return {}
    found: dict[str, Any] = {}
    for name, value in other.at(other.module).slots.items():
        if isinstance(value, PLAIN) or (isinstance(value, Library) and value.name.startswith("torch.")):
            found[name] = value
        elif type(value) is tuple or (isinstance(value, Ref) and other.at(value).kind in ("dict", "list")):
            data = other.plain(value, name)
            if not is_unknown(data):
                found[name] = data
    return {name: value for name, value in found.items() if isinstance(name, str)}


def _is_aside(node: ast.stmt) -> bool:
    """Whether a statement is left out: functions and classes, whose calls stay unknown, and what only a script runs."""
    is_main = isinstance(node, ast.If) and "__name__" in ast.dump(node.test)
    return is_main or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def _rebuilt(machine: Machine, value: Any) -> Any:
    """Data as the script's own objects."""
    if isinstance(value, dict):
        return machine.new("dict", slots={name: _rebuilt(machine, one) for name, one in value.items()})
    if isinstance(value, list):
        return machine.new("list", items=[_rebuilt(machine, one) for one in value])
    return value


__all__ = ["constants_of"]
