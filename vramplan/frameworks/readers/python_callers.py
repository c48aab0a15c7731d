"""Scripts of a project that import a module, to be checked in its place where its functions are called by others."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from vramplan.bounded_read import read_bytes
from vramplan.errors import ConfigError
from vramplan.frameworks.syntax.lookup import project_of

MOST_ENTRIES = 4_000
"""Files and folders that are looked at."""
MOST_FILES = 300
"""Files that are read."""
MOST_BYTES = 60_000
MOST_SHOWN = 2
ASIDE = re.compile(r"\.|test|venv|node_modules|site-packages|build$|dist$")
"""Beginnings of the names of files and folders in which no training is started."""


def importing(where: str) -> list[str]:
    """Scripts of the same project that import the module at `where`, those that are started first."""
    path = Path(where)
    if path.suffix != ".py" or not path.is_file():
        return []
    stem = re.escape(path.stem)
    forms = (rf"from +[\w.]*\b{stem} +import", rf"import +[\w.]*\b{stem}\b", rf"from +[\w.]+ +import .*\b{stem}\b")
    pattern = re.compile(rf"^ *({'|'.join(forms)})", re.MULTILINE)
    found: list[tuple[bool, str]] = []
    for number, file in enumerate(_files(project_of(path.parent))):
        if number >= MOST_FILES:
            break
        try:
            text = read_bytes(file, MOST_BYTES).decode("utf-8", "replace")
        except ConfigError:
            continue
        if pattern.search(text) and file.resolve() != path.resolve():
            found.append(("__main__" not in text, os.path.relpath(file)))
    return [name for _, name in sorted(found)][:MOST_SHOWN]


def _files(root: Path) -> Iterator[Path]:
    """Python files of a project, without those of tests and of installed packages."""
    left = MOST_ENTRIES
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not ASIDE.match(name))
        left -= len(folders) + len(names)
        if left < 0:
            return
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py") and not ASIDE.match(name))


__all__ = ["importing"]
