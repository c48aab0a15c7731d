"""Parts of tables that several machines compute: each writes its share of the rows, and the parts make the tables.

A part is a JSON file that names its share, the version that wrote it, and a digest of each table's request; a table is
made of parts that are all there, agree with it, and are of one division.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from vramplan.analytic.job_steps import VERSIONS
from vramplan.atomic_write import write
from vramplan.bounded_read import read_json
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError
from vramplan.planner.table.effort import share
from vramplan.planner.table.fill import Table, complete, rows_at
from vramplan.planner.table.request import TableRequest
from vramplan.planner.table.row import Place, Row, places_of
from vramplan.planner.table.row_data import from_data, to_data
from vramplan.progress import Progress, silent
from vramplan.version import __version__

FORMAT = "vramplan-table-part"
FORMAT_VERSION = 1
MAX_PART_BYTES = 1 << 28
MAX_SHARES = 100_000
MAX_MISSING = 8
"""Missing shares that an error names."""
PACKAGE = Path(__file__).parents[2]
WRITTEN_BY = f"vramplan {__version__} ({VERSIONS})"


class Share(NamedTuple):
    """A share of the rows: 3/16."""

    number: int
    """From 1."""
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@dataclass(frozen=True, slots=True)
class Part:
    """A part that was read."""

    path: Path
    share: Share
    tables: Mapping[str, Any]
    """By name: {request: digest, rows: [[number, row]]}."""


def write_part(
    path: Path, requests: Mapping[str, TableRequest], part: Share, *, jobs: int = 1, progress: Progress = silent
) -> int:
    """Compute a share of each table and write it to a file; returns the number of its rows.

    Raises:
        ConfigError: if the file cannot be written.
    """
    tables: dict[str, Any] = {}
    for number, (name, request) in enumerate(requests.items()):

        def tell(what: str, done: float, number: int = number) -> None:
            progress(what, (number + done) / len(requests))

        numbers = {place: index for index, place in enumerate(places_of(request))}
        rows = rows_at(request, share(request, part.number, part.of), jobs=jobs, progress=tell)
        numbered = [[numbers[place], to_data(row)] for place, row in sorted(rows.items())]
        tables[name] = {"request": request.digest, "rows": numbered}
    content = {
        FORMAT: FORMAT_VERSION,
        "written_by": WRITTEN_BY,
        "code": code_digest(),
        "share": [part.number, part.of],
        "tables": tables,
    }
    write(path, json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")
    return sum(len(table["rows"]) for table in tables.values())


def read_parts(paths: Sequence[Path]) -> list[Part]:
    """All parts of one division, in order.

    Raises:
        ConfigError: for a file that is no part or of another version, and for parts that are missing or double.
    """
    parts: dict[Share, Part] = {}
    for path in paths:
        part = _read(path)
        first = next(iter(parts.values()), part)
        if part.share in parts:
            raise ConfigError(f"{parts[part.share].path} and {path} are both share {part.share}")
        if part.share.of != first.share.of:
            raise ConfigError(
                f"{first.path} is share {first.share} and {path} {part.share}: they do not make one table"
            )
        parts[part.share] = part
    count = next(iter(parts)).of
    missing = [str(number) for number in range(1, count + 1) if Share(number, count) not in parts]
    if missing:
        more = f" and {len(missing) - MAX_MISSING} more" if len(missing) > MAX_MISSING else ""
        raise ConfigError(
            f"share{'s' * (len(missing) > 1)} {', '.join(missing[:MAX_MISSING])}{more} of {count}"
            f" {'are' if len(missing) > 1 else 'is'} missing"
        )
    return [parts[each] for each in sorted(parts)]


def merge(name: str, request: TableRequest, parts: Sequence[Part]) -> Table:
    """The table of all its parts.

    Raises:
        ConfigError: for a part of another table, one whose rows are broken, and if no job of the table can run.
    """
    places = places_of(request)
    rows: dict[Place, Row] = {}
    for part in parts:
        table = part.tables.get(name)
        if not isinstance(table, dict):
            raise ConfigError(f"{part.path}: has no table {name}, but {', '.join(part.tables) or 'none at all'}")
        if table.get("request") != request.digest:
            raise ConfigError(
                f"{part.path}: the table called {name} has other models, GPUs or settings; --merge needs the options of"
                " --shard"
            )
        try:
            rows_of_part = {places[number]: from_data(row, request) for number, row in table["rows"]}
        except (KeyError, TypeError, ValueError, IndexError):
            raise ConfigError(f"{part.path}: the table called {name} is broken; write the part again") from None
        if sorted(rows_of_part) != share(request, part.share.number, part.share.of):
            raise ConfigError(
                f"{part.path}: the table called {name} lacks rows of share {part.share}; write the part again"
            )
        rows |= rows_of_part
    return complete(request, rows)


@cache
def code_digest() -> str:
    """Of the package's code and data, which tells a checkout from another one of the same version."""
    digest = blake2b(digest_size=16)
    for file in sorted(PACKAGE.rglob("*")):
        if file.suffix in (".py", ".json") and "model_specs" not in file.parts:
            digest.update(f"{file.relative_to(PACKAGE).as_posix()}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> Part:
    content = read_json(path, MAX_PART_BYTES)
    if not isinstance(content, dict) or FORMAT not in content:
        raise ConfigError(f"{path}: is no part of a table; `vramplan table --shard K/N` writes them")
    if content[FORMAT] != FORMAT_VERSION or content.get("written_by") != WRITTEN_BY:
        raise ConfigError(f"{path}: was written by {content.get('written_by')}, and this is {WRITTEN_BY}")
    if content.get("code") != code_digest():
        raise ConfigError(f"{path}: was written by other code of vramplan {__version__}; write the part again")
    numbers, tables = content.get("share"), content.get("tables")
    if (
        not isinstance(numbers, list)
        or [type(number) for number in numbers] != [int, int]
        or not 1 <= numbers[0] <= numbers[1] <= MAX_SHARES
        or not isinstance(tables, dict)
    ):
        raise ConfigError(f"{path}: is broken; write the part again")
    return Part(path, Share(*numbers), tables)
