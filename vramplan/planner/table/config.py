"""``vramplan-table.toml``: tables by name, each with the options of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnknownNameError, VramplanError
from vramplan.frameworks.syntax.config_files import from_toml, read_text
from vramplan.inputs.job import Job
from vramplan.planner.table.request import METHODS, OWN, SHOWN, gpus_called, models_called, one_of

NAME = "vramplan-table.toml"
LISTS = {"models": str, "gpus": str, "methods": str, "seq-lens": int}
KEYS = (*LISTS, "show", "micro-batch", "format", "confidence", "job")
FORMATS = ("markdown", "csv", "json", "html", "latex")
JOB = {"seq-len": "sequence_length", "target-len": "target_length"}
"""Settings of the job whose flags have other names."""


@dataclass(frozen=True, slots=True)
class TableConfig:
    """One table of the file."""

    format: str
    request: dict[str, Any]
    """Arguments of :func:`vramplan.planner.table.table_request`."""


def read(path: Path, names: list[str] | None = None) -> dict[str, TableConfig]:
    """The tables of a file, or those of them that are named; names in them are looked up.

    Raises:
        VramplanError: for an invalid entry, with its line.
    """
    text = read_text(path)
    tables = {name: value_in_file.value for name, value_in_file in from_toml(text, str(path)).items()}
    for name in names or ():
        if name not in tables:
            raise UnknownNameError(f"table of {path},", name, tables, f"known: {', '.join(tables)}")
    return {
        name: _table(Lines(path, text, name), entries)
        for name, entries in tables.items()
        if names is None or name in names
    }


class Lines:
    """The lines of one table's keys, which TOML's reader does not keep."""

    def __init__(self, path: Path, text: str, table: str) -> None:
        self.path, self.lines = path, text.splitlines()
        header = re.compile(rf"\s*\[\s*[\"']?{re.escape(table)}[\"']?\s*(\.|\])")
        self.first = next((number for number, line in enumerate(self.lines) if header.match(line)), 0)
        after = range(self.first + 1, len(self.lines))
        next_headers = (
            number
            for number in after
            if re.match(r"\s*\[[^\[\]]+\]\s*(#.*)?$", self.lines[number]) and not header.match(self.lines[number])
        )
        self.end = next(next_headers, len(self.lines))

    def of(self, key: str, value: object = None, within: str | None = None) -> str:
        """``FILE:LINE`` of a key, or of one value of its list; else of the key that it is within, or of the table."""
        start = next(
            (row for row in range(self.first, self.end) if re.match(rf"\s*[\"']?{re.escape(key)}\b", self.lines[row])),
            None,
        )
        if start is None and within is not None:
            return self.of(within)
        if start is None:
            return f"{self.path}:{self.first + 1}"
        literal = re.escape(str(value))
        word = re.compile(rf"[\"']{literal}[\"']" if isinstance(value, str) else rf"(?<![\w.]){literal}(?![\w.])")
        ends = (row for row in range(start + 1, self.end) if re.match(r"\s*[\w\"'-]+\s*=", self.lines[row]))
        inside = range(start, next(ends, self.end))
        number = next((row for row in inside if value is not None and word.search(self.lines[row])), start)
        return f"{self.path}:{number + 1}"


def _table(lines: Lines, entries: Any) -> TableConfig:
    if not isinstance(entries, Mapping):
        raise ConfigError(f"{lines.path}: expected tables such as [NAME], found a value outside of them")
    for key in entries:
        _at(lines.of(key), lambda key=key: one_of("setting", key, KEYS))  # type: ignore[misc]
    arguments: dict[str, Any] = {}
    for key, kind in LISTS.items():
        values = entries.get(key, [])
        if (
            not isinstance(values, list)
            or any(type(value) is not kind for value in values)
            or (key in entries and not values)
        ):
            raise ConfigError(
                f"{lines.of(key)}: {key}: expected a list of {'names' if kind is str else 'whole numbers'}"
            )
        if values:
            arguments[key.replace("-", "_")] = values
    for key in ("models", "gpus"):
        if key not in arguments:
            raise ConfigError(f"{lines.of(key)}: {key} is missing")
        find: Callable[[Any], list[Any]] = models_called if key == "models" else gpus_called
        for name in arguments[key]:
            _at(lines.of(key, name), lambda: find(_beside(lines.path, name)))  # noqa: B023
        arguments[key] = [_beside(lines.path, name) for name in arguments[key]]
    for method in arguments.get("methods", ()):
        _at(lines.of("methods", method), lambda: one_of("method", method, METHODS))  # noqa: B023
    for key, known in (("show", SHOWN), ("format", FORMATS)):
        if key in entries:
            _at(lines.of(key), lambda: one_of(key, str(entries[key]), known))  # noqa: B023
    for key, kinds in (("micro-batch", (int,)), ("confidence", (int, float))):
        if key in entries and (isinstance(entries[key], bool) or not isinstance(entries[key], kinds)):
            raise ConfigError(f"{lines.of(key)}: {key}: expected a number")
    arguments |= {
        key.replace("-", "_"): entries[key] for key in ("show", "micro-batch", "confidence") if key in entries
    }
    return TableConfig(str(entries.get("format", "markdown")), arguments | _job(lines, entries.get("job", {})))


def _beside(path: Path, name: str) -> str:
    """A model's folder as seen from here; it is given as seen from the file."""
    return str(path.parent / name) if name.startswith(("./", "../")) else name


def _job(lines: Lines, entries: Any) -> dict[str, Any]:
    """The rest of the job, by flag or field."""
    if not isinstance(entries, Mapping):
        raise ConfigError(f'{lines.of("job")}: job: expected settings such as {{ loss = "liger" }}')
    fields = [name for name in Job.model_fields if name not in OWN]
    fields_given = {}
    for key, value in entries.items():
        field = JOB.get(key, key.replace("-", "_"))
        _at(lines.of(key, within="job"), lambda: one_of("setting of the job", field, fields))  # noqa: B023
        fields_given[field] = value
    return fields_given


def _at(where: str, look_up: Callable[[], Any]) -> Any:
    """What a look-up gives, its mistakes with their place.

    Raises:
        ConfigError: what was raised, with its place.
    """
    try:
        return look_up()
    except VramplanError as error:
        raise ConfigError(f"{where}: {error.text}") from error
