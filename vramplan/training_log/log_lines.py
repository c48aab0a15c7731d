"""Lines of a log without what terminals and launchers add, each with its rank."""

from __future__ import annotations

import re

from vramplan.dataclass import dataclass

MOST_CHARACTERS = 20_000
"""Of one line; the rest is left out."""
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Control sequences of ECMA-48: colours, movements, and the titles of windows."""
_QUOTE = re.compile(r"(?:> ?){1,4}")
"""Of an answer to a message."""
_GREP = re.compile(r"\d{1,9}[:-](?=\[)")
_PREFIX = re.compile(
    r"\s{0,8}(?:"
    r"\[rank(?P<rank>\d{1,6})\]"  # PyTorch since 2.2, torch/distributed
    r"|\[(?:default|trainer|worker)(?P<local>\d{1,6})\]"  # torchrun --tee, with usual names of a role
    r"|(?P<node>\d{1,6})(?=: )"  # srun --label, mpirun --tag-output
    r"|\[\d{1,6},(?P<mpi>\d{1,6})\]<std(?:out|err)>"  # mpirun --tag-output
    r"|\((?P<actor>[A-Za-z_][\w.:]{0,80}) (?:pid=\d{1,10})(?:, ip=[\w.:]{1,60})?\)"  # Ray, vLLM
    r"):? ?"
)
_TIME = re.compile(
    r"(?:\[?\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}[.,\d]{0,10}Z?\]?|(?:ERROR|WARNING|INFO) \d{2}-\d{2} [\d:]{8})"
    r"(?: \[[\w./]{1,80}:\d{1,6}\])? ?"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line."""

    text: str
    """Without control sequences, prefixes and its end; with its indentation."""
    rank: int | None
    number: int
    """From 1."""


def clean(line: str) -> str:
    """A line without control sequences, at most :data:`MOST_CHARACTERS` of it."""
    line = line[:MOST_CHARACTERS]
    return _ESCAPE.sub("", line) if "\x1b" in line else line


def split_prefix(line: str) -> tuple[str, int | None]:
    """The line without a launcher's prefixes, and the rank that they tell: the last one is the most exact."""
    rank = None
    for pattern in (_QUOTE, _GREP, _TIME):
        if (match := pattern.match(line)) is not None:
            line = line[match.end() :]
    for _ in range(3):
        match = _PREFIX.match(line)
        if match is None:
            break
        number = next((match[name] for name in ("rank", "local", "node", "mpi") if match[name]), None)
        rank = int(number) if number is not None else rank
        line = line[match.end() :]
    if (match := _TIME.match(line)) is not None:
        line = line[match.end() :]
    return line, rank


def log_lines(text: str, first: int = 1) -> list[LogLine]:
    """Lines of a text; a carriage return ends a line as well, as progress bars write one for each state."""
    lines = []
    for number, physical in enumerate(text.split("\n"), first):
        for part in physical.split("\r"):
            if part:
                bare, rank = split_prefix(clean(part))
                lines.append(LogLine(bare, rank, number))
    return lines
