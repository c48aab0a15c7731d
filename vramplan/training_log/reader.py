"""The messages of a log of any size.

The file is searched in pieces of fixed size. Only what surrounds a message is parsed, and of that the last 16 MiB.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from vramplan.bounded_read import open_regular
from vramplan.errors import ConfigError
from vramplan.training_log.log_lines import log_lines
from vramplan.training_log.message_forms import MARKERS
from vramplan.training_log.parser import LogParser
from vramplan.training_log.record import OutOfMemory
from vramplan.units import GiB, KiB, MiB

PIECE = 4 * MiB
"""Bytes that are searched at once."""
BEFORE = MiB
"""Bytes before a message that are parsed: its traceback, those of the other ranks, the nearest progress bar."""
AFTER = 64 * KiB
"""Bytes after the first words of a message that are parsed."""
MOST_PARSED = 16 * MiB
"""Bytes that are parsed at most, the last ones; a log whose every step runs out of memory has more."""
STANDARD_INPUT = Path("-")
MOST_PIPED = 2 * GiB
"""Bytes that are read of the standard input."""
_UTF16_MARK = b"\xff\xfe"
"""First bytes of a file that PowerShell's ``>`` writes."""


def read_log(path: Path) -> list[OutOfMemory]:
    """Messages of running out of memory: of each form, rank and GPU the last, in the log's order.

    Args:
        path: a log in UTF-8 or, with its mark, little-endian UTF-16. Bytes that are neither are replaced. ``-`` is the
            standard input.

    Raises:
        ConfigError: if the file cannot be read, is no regular file, or is empty.
    """
    where = "standard input" if path == STANDARD_INPUT else str(path)
    with _standard_input() if path == STANDARD_INPUT else open_regular(path) as stream:
        try:
            return _read(stream, where)
        except OSError as reason:
            raise ConfigError(f"{where}: cannot be read ({reason.strerror})") from reason


def _standard_input() -> BinaryIO:
    """What is piped in, in a temporary file: the parser goes back in it.

    Raises:
        ConfigError: if it is longer than :data:`MOST_PIPED`.
    """
    kept = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - the caller closes it
    room = MOST_PIPED
    while piece := sys.stdin.buffer.read(PIECE):
        room -= len(piece)
        if room < 0:
            kept.close()
            raise ConfigError(f"standard input: is longer than {MOST_PIPED // GiB} GiB; give the file")
        kept.write(piece)
    kept.seek(0)
    return kept


def read_text(text: str) -> list[OutOfMemory]:
    """The same of a text, such as one that was pasted."""
    parser = LogParser()
    for line in log_lines(text[-MOST_PARSED:]):
        parser.feed(line)
    return parser.records()


def _read(stream: BinaryIO, where: str) -> list[OutOfMemory]:
    encoding = "utf-16-le" if stream.read(2) == _UTF16_MARK else "utf-8"
    newline = "\n".encode(encoding)
    regions, lines_before, size = _search(stream, [marker.encode(encoding) for marker in MARKERS], newline)
    if not size:
        raise ConfigError(f"{where}: is empty")
    parser = LogParser()
    for start, end in regions:
        piece = start // PIECE
        stream.seek(piece * PIECE)
        first = lines_before[piece] + stream.read(start - piece * PIECE).count(newline) + 1
        content = stream.read(end - start)
        text = content.decode(encoding, "replace")
        if start:  # in the middle of a line
            text = text[_first_end(text) :]
            first += 1
        parser.start_region()
        for line in log_lines(text.removeprefix("\ufeff"), first):
            parser.feed(line)
    return parser.records()


def _first_end(text: str) -> int:
    """Where the first line ends; at a carriage return if the text has no other ends."""
    at = text.find("\n")
    return at + 1 if at >= 0 else text.find("\r") + 1


def _search(stream: BinaryIO, markers: list[bytes], newline: bytes) -> tuple[list[tuple[int, int]], list[int], int]:
    """What to parse, as offsets; ends of lines before each piece; the file's size."""
    overlap = max(map(len, markers)) - 1
    regions: list[tuple[int, int]] = []
    lines_before, lines, offset, tail = [], 0, 0, b""
    stream.seek(0)
    while piece := stream.read(PIECE):
        lines_before.append(lines)
        content = tail + piece
        for hit in sorted(hit for marker in markers for hit in _hits(content, marker)):
            _add(regions, offset - len(tail) + hit)
        lines += piece.count(newline)
        offset += len(piece)
        tail = content[-overlap:]
    return _last([(start, min(end, offset)) for start, end in regions]), lines_before, offset


def _hits(content: bytes, marker: bytes) -> Iterator[int]:
    """Where the marker is; of places that the region of one covers, the first."""
    at = content.find(marker)
    while at >= 0:
        yield at
        at = content.find(marker, at + AFTER // 2)


def _add(regions: list[tuple[int, int]], hit: int) -> None:
    start, end = max(0, hit - BEFORE) & ~1, (hit + AFTER) & ~1  # whole characters of UTF-16
    if regions and start <= regions[-1][1]:
        start = regions.pop()[0]
    regions.append((start, end))


def _last(regions: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The last regions, of which the first may be cut, of at most :data:`MOST_PARSED` bytes."""
    kept, room = [], MOST_PARSED
    for start, end in reversed(regions):
        if room <= 0:
            break
        kept.append((max(start, end - room), end))
        room -= end - start
    return kept[::-1]
