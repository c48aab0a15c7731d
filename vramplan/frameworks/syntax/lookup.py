"""Where a file that a configuration names lies on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vramplan.bounded_read import is_file

MOST_PARENTS = 16
"""Folders above a configuration that are searched at most."""


def beside(name: object, folder: Path) -> Path | None:
    """A file that a configuration names: relative to here, to its own folder, or to one above; None if there is none.

    Folders above are searched up to the root of the checkout, since frameworks run from theirs: the nearest folder with
    ``.git``, or the current one if there is none. A name with ``..`` could leave it, and is only looked for in the
    first two.
    """
    text = str(name)
    folders = [Path(), folder]
    if ".." not in Path(text).parts:
        folders += _parents(folder)
    for start in folders:
        if is_file(start / text):
            return start / text
    return None


def from_here(path: Path) -> str:
    """A path as it is seen from the current folder."""
    here = Path().absolute()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def project_of(folder: Path) -> Path:
    """The root of the checkout that a folder is in; the folder itself if it is in none."""
    return [folder, *_parents(folder)][-1]


def is_in_project(path: Path, folder: Path) -> bool:
    """Whether a file lies in the checkout around `folder`, or below the current folder.

    What lies outside of both may be another file on the machine that the configuration is for.
    """
    roots = (Path(), project_of(folder))
    try:
        return any(path.resolve().is_relative_to(root.resolve()) for root in roots)
    except OSError:
        return False


def _parents(folder: Path) -> Iterator[Path]:
    """The folders above `folder` in the same checkout, the nearest first."""
    try:
        start, here = folder.absolute(), Path().absolute()
        levels = [start, *start.parents][:MOST_PARENTS]
        roots = [level for level in levels if (level / ".git").exists()] or [level for level in levels if level == here]
    except OSError:
        return
    if roots:
        yield from levels[1 : levels.index(roots[0]) + 1]
