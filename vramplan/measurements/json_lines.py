"""Files of runs with one JSON object per line, and what is wrong in one of them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from vramplan.bounded_read import decoded, parse_json, read_bytes
from vramplan.errors import ConfigError
from vramplan.inputs.validation import check_settings

Run = TypeVar("Run", bound=BaseModel)


def load_runs(path: Path, kind: type[Run], name: str) -> list[Run]:
    """The runs of a file.

    Args:
        path: a file with one JSON object per line.
        kind: what a line is; its `job` holds settings of :class:`vramplan.Job`.
        name: what messages call it, such as "timed run".

    Raises:
        ConfigError: for an unreadable or empty file, or an invalid line, naming the line.
    """
    runs = []
    for number, line in enumerate(decoded(read_bytes(path), path).splitlines(), 1):
        try:
            run = kind.model_validate(parse_json(line, path))
            check_settings(run.job)  # type: ignore[attr-defined]
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"{path}: line {number} is not a {name} ({problem(error)})") from error
        runs.append(run)
    if not runs:
        raise ConfigError(f"{path}: no {name} is in it")
    return runs


def problem(error: Exception) -> str:
    """An error in words: of several invalid fields the first, with its key."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    where = ".".join(map(str, first["loc"]))
    return f"{where}: " * bool(where) + message[0].lower() + message[1:]
