"""A data set row by row, each with its line: JSONL, a JSON array, CSV, TSV or plain text, never whole in memory."""

from __future__ import annotations

import csv
import json
import re
import time
from codecs import BOM_UTF8, getincrementaldecoder
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from vramplan.errors import ConfigError
from vramplan.progress import Progress

MOST_BYTES = 64 << 20
"""Of one row: more is no row."""
CHUNK = 1 << 20
A_MOMENT = 1.0
"""Seconds before progress is told."""
Rows = Iterator[tuple[int, Any]]
"""(line, row), from line 1."""


def rows(path: Path, progress: Progress) -> Rows:
    """Every row of the file, with its line.

    Raises:
        ConfigError: naming the line of what is broken, for another kind of file, and where there is no row.
    """
    kind = path.suffix.lower()
    if kind not in READERS:
        raise ConfigError(
            f"{path}: a data set is read as {', '.join(READERS)}, not as {kind or 'a file without suffix'}"
        )
    try:
        with path.open("rb") as stream:
            size = path.stat().st_size
            begun = told = time.monotonic()
            none = True
            if b"\0" in stream.read(CHUNK):
                raise ConfigError(f"{path}: is binary; give text")
            stream.seek(len(BOM_UTF8) if stream.seek(0) == 0 and stream.read(3) == BOM_UTF8 else 0)
            for line, row in READERS[kind](stream, str(path)):
                none = False
                now = time.monotonic()
                if now - begun > A_MOMENT and now - told > 0.1:
                    told = now
                    progress(f"{path.name}, line {line:,}", stream.tell() / size)
                yield line, row
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if none:
        raise ConfigError(f"{path}: is empty")


def _lines(stream: BinaryIO, where: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank."""
    number = 0
    while raw := stream.readline(MOST_BYTES):
        number += 1
        if len(raw) == MOST_BYTES:
            raise ConfigError(f"{where}:{number}: a line of more than {MOST_BYTES >> 20} MiB is no row")
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{where}:{number}: is not UTF-8 text") from error
        if not line.isspace():
            yield number, line


def _json(stream: BinaryIO, where: str) -> Rows:
    """JSONL, or one array, whatever the suffix says."""
    start = stream.tell()
    head = stream.read(CHUNK).lstrip()
    stream.seek(start)
    return _array(stream, where) if head.startswith(b"[") else _jsonl(stream, where)


def _jsonl(stream: BinaryIO, where: str) -> Rows:
    for number, line in _lines(stream, where):
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{where}:{number}: is not JSON ({error.msg}); one object a line is expected") from error
        except RecursionError as error:
            raise ConfigError(f"{where}:{number}: nested too deeply") from error


def _array(stream: BinaryIO, where: str) -> Rows:
    """The elements of one array, decoded as they come."""
    decode, text, at, line = getincrementaldecoder("utf-8")(), "", 0, 1
    gap, scan = re.compile(r"[\s,]*"), json.JSONDecoder().raw_decode
    try:
        text = decode.decode(stream.read(CHUNK))
        at = text.index("[") + 1
        line += text.count("\n", 0, at)
        while True:
            begin = gap.match(text, at).end()  # type: ignore[union-attr]
            line += text.count("\n", at, begin)
            at = begin
            if text[at : at + 1] == "]":
                return
            try:
                row, end = scan(text, at)
            except (json.JSONDecodeError, RecursionError) as error:
                more = stream.read(max(CHUNK, len(text) - at))
                if not more or len(text) - at > MOST_BYTES:
                    said = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
                    raise ConfigError(f"{where}:{line}: broken JSON in this row ({said})") from error
                text, at = text[at:] + decode.decode(more), 0
                continue
            yield line, row
            line += text.count("\n", at, end)
            at = end
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}:{line}: is not UTF-8 text hereafter") from error


def _table(delimiter: str) -> Callable[[BinaryIO, str], Rows]:
    def read(stream: BinaryIO, where: str) -> Rows:
        """Rows by the names in the first line."""
        found = csv.DictReader((line for _, line in _lines(stream, where)), delimiter=delimiter)
        try:
            for row in found:
                yield found.line_num, {key: value for key, value in row.items() if isinstance(key, str)}
        except csv.Error as error:
            raise ConfigError(f"{where}:{found.line_num}: broken table ({error})") from error

    return read


READERS: dict[str, Callable[[BinaryIO, str], Rows]] = {
    ".jsonl": _json,
    ".json": _json,
    ".csv": _table(","),
    ".tsv": _table("\t"),
    ".txt": _lines,
}
"""By suffix."""
