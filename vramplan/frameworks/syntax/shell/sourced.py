"""Files that a script takes in by ``source``: read where they lie in its project, and followed as a part of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vramplan.bounded_read import decoded, is_file, read_bytes
from vramplan.errors import ConfigError
from vramplan.frameworks.syntax.lookup import is_in_project
from vramplan.frameworks.syntax.shell.grammar import parse
from vramplan.frameworks.syntax.shell.state import State, join
from vramplan.frameworks.syntax.shell.tree import UNKNOWN

if TYPE_CHECKING:
    from vramplan.frameworks.syntax.shell.interpreter import Interpreter

MOST_BYTES = 60_000
DEEPEST = 6
"""Files that take in one another."""


def path_of(run: Interpreter, name: str, state: State) -> Path | None:
    """A file in the script's own project, from where the script is or from its folder; None for any other.

    What lies outside of it (``~/.bashrc``) may be another file where the script runs.
    """
    if not name or UNKNOWN in name or UNKNOWN in state.folder or state.lost or not run.expander.start:
        return None
    here, own = Path(run.expander.start), Path(run.where).absolute().parent
    paths = (start / state.folder / name for start in (here, own))
    return next((path for path in paths if is_file(path) and is_in_project(path, own)), None)


def follow(run: Interpreter, path: Path, state: State) -> tuple[bool, State | None]:
    """(whether the file could be read, the state behind it)."""
    if run.sourced >= DEEPEST:
        return False, state
    try:
        text = decoded(read_bytes(path, MOST_BYTES), path).replace("\r\n", "\n")
        tree = parse(text, str(path), run.line, run.span)
    except ConfigError:
        return False, state
    line, loops, run.loops = run.line, run.loops, []
    former, run.expander.path = run.expander.path, str(path)
    run.spend(1 + len(text) // 50)
    run.returns.append(None)
    run.sourced += 1
    try:
        after = run.sequence(tree, state)
        return True, join(after, run.returns[-1])
    finally:
        run.sourced -= 1
        run.returns.pop()
        run.line, run.loops, run.expander.path = line, loops, former


__all__ = ["follow", "path_of"]
