"""Tables inside a file: found between two markers, compared, replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path

from vramplan.atomic_write import write
from vramplan.bounded_read import read_bytes
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnknownNameError

BEGIN, END = "<!-- vramplan table: begin {} -->", "<!-- vramplan table: end {} -->"
MARK = re.compile(r"[ \t]*<!-- vramplan table: (?P<which>begin|end) (?P<name>\S+) -->[ \t]*\r?\n?")
"""A line of its own: prose may speak of markers."""


@dataclass(frozen=True, slots=True)
class Region:
    """The lines between the markers of one table."""

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
        ConfigError: if it cannot be read.
    """
    try:
        return read_bytes(path).decode("utf-8").splitlines(keepends=True)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error


def regions(path: Path, lines: list[str]) -> list[Region]:
    """The tables of a file, in order.

    Raises:
        ConfigError: for a marker that is alone, doubled or inside another table, and if there are none.
    """
    tables: dict[str, Region] = {}
    open_table: tuple[str, int] | None = None
    for index, line in enumerate(lines):
        mark = MARK.fullmatch(line.lstrip("\ufeff"))  # the mark of some editors at a file's beginning
        if mark is None:
            continue
        where, name = f"{path}:{index + 1}", mark["name"]
        if mark["which"] == "begin":
            if open_table is not None:
                raise ConfigError(f"{where}: table {name} begins before {open_table[0]} of line {open_table[1]} ends")
            if name in tables:
                raise ConfigError(f"{where}: table {name} stands twice, first in line {tables[name].line}")
            open_table = name, index + 1
        elif open_table is None or open_table[0] != name:
            raise ConfigError(f"{where}: the end of table {name} has no beginning")
        else:
            tables[name] = Region(name, open_table[1], open_table[1], index)
            open_table = None
    if open_table is not None:
        raise ConfigError(
            f"{path}:{open_table[1]}: table {open_table[0]} has no end; close it with {END.format(open_table[0])}"
        )
    if not tables:
        raise ConfigError(
            f"{path}: no markers; put {BEGIN.format('NAME')} and {END.format('NAME')} on lines of their own"
        )
    return list(tables.values())


def select(path: Path, found: list[Region], known: Mapping[str, object], names: list[str] | None) -> list[Region]:
    """The regions with these names; all if None.

    Raises:
        VramplanError: for a name without markers, and markers of an unknown table.
    """
    for name in names or ():
        if name not in {region.name for region in found}:
            raise ConfigError(f"{path}: no markers of table {name}; put {BEGIN.format(name)} and {END.format(name)}")
    selected = [region for region in found if names is None or region.name in names]
    for region in selected:
        if region.name not in known:
            raise UnknownNameError(f"table in {path}:{region.line},", region.name, known, f"known: {', '.join(known)}")
    return selected


def renewed(lines: list[str], texts: Mapping[str, str], found: list[Region]) -> list[str]:
    """The file's lines with these tables between their markers, line ends kept."""
    new_lines = list(lines)
    for region in sorted(found, key=lambda region: -region.first):
        if region.name in texts:
            ending = "\r\n" if lines[region.first - 1].endswith("\r\n") else "\n"
            new_lines[region.first : region.end] = [line + ending for line in texts[region.name].splitlines()]
    return new_lines


def stale(lines: list[str], texts: Mapping[str, str], found: list[Region]) -> list[str]:
    """The names of the tables that differ from the file."""
    return [region.name for region in found if renewed(lines, {region.name: texts[region.name]}, found) != lines]


def difference(path: Path, old: list[str], new: list[str]) -> str:
    """A unified diff from the file to what it should be."""
    return "".join(unified_diff(old, new, str(path), f"{path} (now)"))


def put(path: Path, lines: list[str], before: list[str]) -> None:
    """Write the file whole or not at all; it must still have the lines `before`.

    Raises:
        ConfigError: for a file that cannot be written.
    """
    write(path, "".join(lines).encode(), "".join(before).encode())
