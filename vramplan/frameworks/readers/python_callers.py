"""What of a project is to be checked in a script's place: scripts that import it, shell scripts that start it."""

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
SHELL = (".sh", ".slurm", ".sbatch")
STARTS = re.compile(r"\b(python3?|accelerate|torchrun|deepspeed|uv)\b")
"""Programs that start a script."""
ASIDE = re.compile(r"\.|test|venv|node_modules|site-packages|build$|dist$")
"""Beginnings of the names of files and folders in which no training is started."""


def starting(where: str) -> list[str]:
    """Shell scripts of the same project that name the script at `where`."""
    path = Path(where)
    if not path.is_file():
        return []
    scripts: list[str] = []
    for number, file in enumerate(_files(project_of(path.parent), SHELL)):
        if number >= MOST_FILES:
            break
        lines = _text(file).replace("\\\n", " ").splitlines()
        if any(path.name in line and STARTS.search(line) for line in lines if not line.lstrip().startswith("#")):
            scripts.append(os.path.relpath(file))
    return scripts[:MOST_SHOWN]


def importing(where: str) -> list[str]:
    """Scripts of the same project that import the module at `where`, those that are started first."""
    path = Path(where)
    if path.suffix != ".py" or not path.is_file():
        return []
    stem = re.escape(path.stem)
    forms = (rf"from +[\w.]*\b{stem} +import", rf"import +[\w.]*\b{stem}\b", rf"from +[\w.]+ +import .*\b{stem}\b")
    pattern = re.compile(rf"^ *({'|'.join(forms)})", re.MULTILINE)
    scripts: list[tuple[bool, str]] = []
    for number, file in enumerate(_files(project_of(path.parent), (".py",))):
        if number >= MOST_FILES:
            break
        text = _text(file)
        if pattern.search(text) and file.resolve() != path.resolve():
            scripts.append(("__main__" not in text, os.path.relpath(file)))
    return [name for _, name in sorted(scripts)][:MOST_SHOWN]


def _text(file: Path) -> str:
    try:
        return read_bytes(file, MOST_BYTES).decode("utf-8", "replace")
    except ConfigError:
        return ""


def _files(root: Path, ends: tuple[str, ...]) -> Iterator[Path]:
    """Files of a project with these ends, without those of tests and of installed packages."""
    left = MOST_ENTRIES
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not ASIDE.match(name))
        left -= len(folders) + len(names)
        if left < 0:
            return
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(ends) and not ASIDE.match(name))


__all__ = ["importing", "starting"]
