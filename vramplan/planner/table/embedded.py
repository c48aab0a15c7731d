"""Tables inside a file: found between two markers, compared, replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from vramplan.atomic_write import write
from vramplan.errors import ConfigError, UnknownNameError

BEGIN, END = "<!-- vramplan table: begin {} -->", "<!-- vramplan table: end {} -->"
MARK = re.compile(r"[ \t]*<!-- vramplan table: (?P<which>begin|end) (?P<name>\S+) -->[ \t]*\r?\n?")
"""A line of its own: prose may speak of markers."""


@dataclass(frozen=True, slots=True)
class Region:
    """What stands between the markers of one table."""

    name: str
    line: int
    """Of the first marker, from 1."""
    first: int
    """Index of the first line between them."""
    end: int
    """Index of the second marker's line."""


def read(path: Path) -> list[str]:
    """A file's lines with their ends.

    Raises:
        ConfigError: where it cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8").splitlines(keepends=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error


def regions(path: Path, lines: list[str]) -> list[Region]:
    """The tables of a file, in order.

    Raises:
        ConfigError: for a marker that is alone, doubled or inside another table, and where there is none.
    """
    found: dict[str, Region] = {}
    opened: tuple[str, int] | None = None
    for index, line in enumerate(lines):
        mark = MARK.fullmatch(line.lstrip("\ufeff"))  # the mark of some editors at a file's beginning
        if mark is None:
            continue
        where, name = f"{path}:{index + 1}", mark["name"]
        if mark["which"] == "begin":
            if opened is not None:
                raise ConfigError(f"{where}: table {name} begins before {opened[0]} of line {opened[1]} ends")
            if name in found:
                raise ConfigError(f"{where}: table {name} stands twice, first in line {found[name].line}")
            opened = name, index + 1
        elif opened is None or opened[0] != name:
            raise ConfigError(f"{where}: the end of table {name} has no beginning")
        else:
            found[name] = Region(name, opened[1], opened[1], index)
            opened = None
    if opened is not None:
        raise ConfigError(f"{path}:{opened[1]}: table {opened[0]} has no end; close it with {END.format(opened[0])}")
    if not found:
        raise ConfigError(
            f"{path}: no markers; put {BEGIN.format('NAME')} and {END.format('NAME')} on lines of their own"
        )
    return list(found.values())


def wanted(path: Path, found: list[Region], known: Mapping[str, object], names: list[str] | None) -> list[Region]:
    """The regions to look at: those named, else all.

    Raises:
        VramplanError: for a name without markers, and markers of a table that is none.
    """
    for name in names or ():
        if name not in {one.name for one in found}:
            raise ConfigError(f"{path}: no markers of table {name}; put {BEGIN.format(name)} and {END.format(name)}")
    chosen = [one for one in found if names is None or one.name in names]
    for one in chosen:
        if one.name not in known:
            raise UnknownNameError(f"table in {path}:{one.line},", one.name, known, f"known: {', '.join(known)}")
    return chosen


def renewed(lines: list[str], texts: Mapping[str, str], found: list[Region]) -> list[str]:
    """The file with these tables in place of what stood there, its line ends kept."""
    made = list(lines)
    for region in sorted(found, key=lambda one: -one.first):
        if region.name in texts:
            ending = "\r\n" if lines[region.first - 1].endswith("\r\n") else "\n"
            made[region.first : region.end] = [line + ending for line in texts[region.name].splitlines()]
    return made


def stale(lines: list[str], texts: Mapping[str, str], found: list[Region]) -> list[str]:
    """The names of those that stand there otherwise."""
    return [one.name for one in found if renewed(lines, {one.name: texts[one.name]}, found) != lines]


def difference(path: Path, old: list[str], new: list[str]) -> str:
    """A unified diff from what stands there to what should."""
    return "".join(unified_diff(old, new, str(path), f"{path} (now)"))


def put(path: Path, lines: list[str]) -> None:
    """Write the file whole or not at all.

    Raises:
        ConfigError: for a file that is not to be written.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if not mode & 0o200:
        raise ConfigError(f"{path}: is read-only")
    write(path, "".join(lines).encode())
