"""Modules of the script's own: found beside it and followed as the script is, never imported."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramplan.bounded_read import is_file, is_folder
from vramplan.errors import ConfigError
from vramplan.frameworks.syntax.config_files import read_text
from vramplan.frameworks.syntax.lookup import beside, from_here
from vramplan.frameworks.syntax.python.machine import Frame, Source
from vramplan.frameworks.syntax.python.memory import MISSING, MOST_STEPS
from vramplan.frameworks.syntax.python.trusted import TRUSTED
from vramplan.frameworks.syntax.python.values import Library, Module

if TYPE_CHECKING:
    from vramplan.frameworks.syntax.python.machine import Machine

MOST_CHARACTERS = 60_000
"""Of one module."""
MOST_NESTED = 8
"""Modules that import from one another."""
MOST_MODULES = 40
MOST_SHARE = MOST_STEPS // 2
"""Steps behind which no further module, and no function of one, is followed."""


def imported(machine: Machine, name: str, level: int = 0) -> Module | None:
    """A module that the script has beside it; None for libraries, and for what is not here or cannot be followed.

    Args:
        machine: follows the script.
        name: dotted, without the dots of a relative import.
        level: the number of those dots.
    """
    if not level and (not name or name.partition(".")[0] in TRUSTED):
        return None
    path = _relative(machine, name, level) if level else _absolute(name, Path(machine.where).parent)
    if path is None:
        return None
    if not level:
        for parent in _packages(name, path):
            _scope(machine, parent)
    scope = _scope(machine, path)
    return None if scope is None else Module(f"{'.' * level}{name}", scope)


def member(machine: Machine, module: Module, name: str) -> Any:
    """A name of a module, or a module of a package; a library's name where neither is known."""
    value = machine.at(module.scope).slots.get(name, MISSING)
    if value is not MISSING:
        return value
    file = machine.files[module.scope]
    if Path(file).name == "__init__.py":
        path = _python_file(Path(file).parent / name)
        scope = None if path is None else _scope(machine, path)
        if scope is not None:
            return Module(f"{module.name}.{name}", scope)
    return Library(f"{module.name}.{name}"[:300])


def public_names(machine: Machine, module: Module) -> dict[str, Any]:
    """What ``from module import *`` binds."""
    slots = machine.at(module.scope).slots
    listed = machine.iterated(slots["__all__"]) if "__all__" in slots else None
    names = [name for name in slots if not str(name).startswith("_")] if listed is None else listed
    return {name: slots[name] for name in names if name in slots}


def _absolute(name: str, folder: Path) -> Path | None:
    """A module's file: beside the script, where Python looks first, else in a folder above it, or in its ``src``."""
    stem = name.replace(".", "/")
    path = _python_file(folder / stem)
    for start in ("", "src/"):
        for file in (f"{start}{stem}.py", f"{start}{stem}/__init__.py"):
            path = path or beside(file, folder)
    return path


def _relative(machine: Machine, name: str, level: int) -> Path | None:
    folder = Path(machine.files.get(machine.module, machine.where)).parent
    for _ in range(level - 1):
        folder = folder.parent
    if not name:
        return folder / "__init__.py" if is_file(folder / "__init__.py") else None
    return _python_file(folder / name.replace(".", "/"))


def _python_file(stem: Path) -> Path | None:
    """The file of a module or of a package."""
    files = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((file for file in files if is_file(file)), None)


def _packages(name: str, path: Path) -> list[Path]:
    """The files of the packages around a module, the outermost first."""
    depth = name.count(".") + (1 if path.name == "__init__.py" else 0)
    folders = [path.parents[number] for number in range(depth) if number < len(path.parents)]
    files = [folder / "__init__.py" for folder in reversed(folders) if is_folder(folder)]
    return [file for file in files if file != path and is_file(file)]


def _scope(machine: Machine, path: Path) -> int | None:
    """The scope of a module, followed when it is first imported; None if it cannot be."""
    key = from_here(path)
    scope = machine.modules.get(key, 0)
    if scope is None or (scope and scope in machine.heap.objects):
        return scope
    nested = sum(frame.is_module for frame in machine.frames)
    if len(machine.modules) >= MOST_MODULES or nested >= MOST_NESTED or machine.steps > MOST_SHARE:
        return None
    machine.modules[key] = None
    if path.resolve() == Path(machine.where).resolve():  # a second copy of the script, which would train in it
        return None
    try:
        tree = _tree(key, path)
    except (ConfigError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return _followed(machine, tree, key)


def _tree(key: str, path: Path) -> ast.Module:
    from vramplan.frameworks.syntax.python_ast import parse

    text = read_text(path)
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"{path}: is too long to be followed")
    tree, source = parse(text), Source(key, text.splitlines())
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)):
            node.vramplan_source = source  # type: ignore[union-attr]
    return tree


def _followed(machine: Machine, tree: ast.Module, key: str) -> int | None:
    """Follow a module's statements in a scope of its own; one that ends with an exception is as if it were not here."""
    before = machine.fork()
    scope = machine.new("scope").id
    machine.modules[key], machine.files[scope] = scope, key
    machine.frames.append(Frame(scope, is_module=True))
    loops, machine.loops = machine.loops, []
    try:
        machine.block(tree.body)
    finally:
        machine.frames.pop()
        machine.loops = loops
    if machine.live is None:
        machine.live, machine.modules[key] = before, None
        return None
    return scope


__all__ = ["MOST_SHARE", "imported", "member", "public_names"]
