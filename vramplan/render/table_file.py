"""Several tables as text, and tables kept up to date between markers in a file: `table --check` and `--write`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError
from vramplan.planner.table import TableRequest, embedded, fill, table_request
from vramplan.planner.table.config import TableConfig
from vramplan.planner.table.parts import merge, read_parts
from vramplan.progress import Progress, silent
from vramplan.render.table import FORMATS


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file with tables between markers, compared with what the tables are now."""

    path: Path
    stale: list[str]
    """Tables that differ."""
    current: list[str]
    """Tables that are up to date."""
    missing: list[str]
    """Tables that were requested and have no markers in the file."""
    difference: str
    """A unified diff from the file to what it should be."""


def requests_of(tables: Mapping[str, TableConfig], source: Path | None = None) -> dict[str, TableRequest]:
    """The requests for these tables, by name; `source` is the file that they were read from, for error messages.

    Raises:
        VramplanError: for an invalid request.
    """
    requests = {}
    for name, table in tables.items():
        try:
            requests[name] = table_request(**table.request)
        except ConfigError as error:
            raise _located(error, name, source) from error
    return requests


def table_texts(
    tables: Mapping[str, TableConfig],
    format: str | None = None,
    *,
    parts: Sequence[Path] = (),
    jobs: int | None = None,
    source: Path | None = None,
    progress: Progress = silent,
) -> dict[str, str]:
    """Each table as text, by name.

    Args:
        tables: The requests, by name.
        format: One format for all of them; None for each one's own.
        parts: Files with all parts of the tables (:mod:`vramplan.planner.table.parts`); without them, the tables are
            computed.
        jobs: Processes; None for as many as there are cores.
        source: The file that the requests were read from, for error messages.
        progress: Called with what is being done, and the share of all tables that is done.

    Raises:
        ConfigError: for a table of which no cell can run, and parts that do not make the tables.
    """
    requests = requests_of(tables, source)
    read = read_parts(parts) if parts else []
    texts = {}
    for number, (name, request) in enumerate(requests.items()):

        def tell(what: str, share: float, number: int = number) -> None:
            progress(what, (number + share) / len(requests))

        if parts:
            filled = merge(name, request, read)
        else:
            try:
                filled = fill(request, jobs=jobs or os.cpu_count() or 1, progress=tell)
            except ConfigError as error:
                raise _located(error, name, source) from error
        texts[name] = FORMATS[format or tables[name].format](filled)
    return texts


def _located(error: ConfigError, name: str, source: Path | None) -> ConfigError:
    return ConfigError(f"{source}: {name}: {error.text}" if source else error.text)


def as_one_json(texts: Mapping[str, str]) -> str:
    """Tables in JSON as one object, by name; a single one as it is."""
    if len(texts) == 1:
        return next(iter(texts.values()))
    return json.dumps({name: json.loads(text) for name, text in texts.items()}, indent=2, ensure_ascii=False) + "\n"


def update_file(
    path: Path,
    tables: Mapping[str, TableConfig],
    names: list[str] | None = None,
    format: str | None = None,
    *,
    write: bool = False,
    parts: Sequence[Path] = (),
    jobs: int | None = None,
    source: Path | None = None,
    progress: Progress = silent,
) -> TableFile:
    """Compare the tables between a file's markers with what they should be; `write` puts the new ones there.

    `names` are the tables to look at, None for all that the file has markers of; the rest as in :func:`table_texts`.

    Raises:
        VramplanError: for a file without markers, markers of an unknown table, and a table that cannot be made.
    """
    lines = embedded.read(path)
    regions = embedded.select(path, embedded.regions(path, lines), tables, names)
    in_file = {region.name: tables[region.name] for region in regions}
    texts = table_texts(in_file, format, parts=parts, jobs=jobs, source=source, progress=progress)
    stale = embedded.stale(lines, texts, regions)
    if stale and write:
        lines_now = embedded.read(path)  # it may have been edited meanwhile
        embedded.put(path, embedded.renewed(lines_now, texts, embedded.regions(path, lines_now)), lines_now)
    return TableFile(
        path,
        stale,
        [name for name in texts if name not in stale],
        [name for name in tables if name not in texts],
        embedded.difference(path, lines, embedded.renewed(lines, texts, regions)),
    )
