"""``vramplan-table.toml``: tables by name, each asked for in the words of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramplan.errors import ConfigError, UnknownNameError, VramplanError
from vramplan.frameworks.syntax.config_files import from_toml, read_text
from vramplan.inputs.job import Job
from vramplan.planner.table.request import METHODS, OWN, SHOWN, gpus_called, models_called, one_of

NAME = "vramplan-table.toml"
LISTS = {"models": str, "gpus": str, "methods": str, "seq-lens": int}
KEYS = (*LISTS, "show", "micro-batch", "format", "confidence", "job")
FORMATS = ("markdown", "csv", "json", "html", "latex")
JOB = {"seq-len": "sequence_length", "target-len": "target_length"}
"""Settings of the job whose flags are called otherwise."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One table of the file."""

    format: str
    sheet: dict[str, Any]
    """Arguments of :func:`vramplan.planner.table.request`."""


def read(path: Path, names: list[str] | None = None) -> dict[str, Wanted]:
    """The tables of a file, or those of them that are named; names in them are looked up.

    Raises:
        VramplanError: for what is wrong in it, with its line.
    """
    text = read_text(path)
    tables = {name: setting.value for name, setting in from_toml(text, str(path)).items()}
    for name in names or ():
        if name not in tables:
            raise UnknownNameError(f"table of {path},", name, tables, f"known: {', '.join(tables)}")
    return {
        name: _table(Lines(path, text, name), given) for name, given in tables.items() if names is None or name in names
    }


class Lines:
    """Where the words of one table stand, since TOML's reader does not say."""

    def __init__(self, path: Path, text: str, table: str) -> None:
        self.path, self.lines = path, text.splitlines()
        header = re.compile(rf"\s*\[\s*[\"']?{re.escape(table)}[\"']?\s*(\.|\])")
        self.first = next((n for n, line in enumerate(self.lines) if header.match(line)), 0)
        after = range(self.first + 1, len(self.lines))
        other = (
            n
            for n in after
            if re.match(r"\s*\[[^\[\]]+\]\s*(#.*)?$", self.lines[n]) and not header.match(self.lines[n])
        )
        self.end = next(other, len(self.lines))

    def of(self, key: str, value: object = None, within: str | None = None) -> str:
        """``FILE:LINE`` of a key, or of one value of its list; else of the key that it is within, or of the table."""
        start = next(
            (n for n in range(self.first, self.end) if re.match(rf"\s*[\"']?{re.escape(key)}\b", self.lines[n])), None
        )
        if start is None and within is not None:
            return self.of(within)
        if start is None:
            return f"{self.path}:{self.first + 1}"
        shown = re.escape(str(value))
        word = re.compile(rf"[\"']{shown}[\"']" if isinstance(value, str) else rf"(?<![\w.]){shown}(?![\w.])")
        ends = (n for n in range(start + 1, self.end) if re.match(r"\s*[\w\"'-]+\s*=", self.lines[n]))
        inside = range(start, next(ends, self.end))
        found = next((n for n in inside if value is not None and word.search(self.lines[n])), start)
        return f"{self.path}:{found + 1}"


def _table(lines: Lines, given: Any) -> Wanted:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{lines.path}: expected tables such as [NAME], found a value outside of them")
    for key in given:
        _at(lines.of(key), lambda key=key: one_of("setting", key, KEYS))  # type: ignore[misc]
    made: dict[str, Any] = {}
    for key, kind in LISTS.items():
        values = given.get(key, [])
        if (
            not isinstance(values, list)
            or any(type(one) is not kind for one in values)
            or (key in given and not values)
        ):
            raise ConfigError(
                f"{lines.of(key)}: {key}: expected a list of {'names' if kind is str else 'whole numbers'}"
            )
        if values:
            made[key.replace("-", "_")] = values
    for key in ("models", "gpus"):
        if key not in made:
            raise ConfigError(f"{lines.of(key)}: {key} is missing")
        called: Callable[[Any], list[Any]] = models_called if key == "models" else gpus_called
        for name in made[key]:
            _at(lines.of(key, name), lambda: called(_beside(lines.path, name)))  # noqa: B023
        made[key] = [_beside(lines.path, name) for name in made[key]]
    for method in made.get("methods", ()):
        _at(lines.of("methods", method), lambda: one_of("method", method, METHODS))  # noqa: B023
    for key, known in (("show", SHOWN), ("format", FORMATS)):
        if key in given:
            _at(lines.of(key), lambda: one_of(key, str(given[key]), known))  # noqa: B023
    for key, kinds in (("micro-batch", (int,)), ("confidence", (int, float))):
        if key in given and (isinstance(given[key], bool) or not isinstance(given[key], kinds)):
            raise ConfigError(f"{lines.of(key)}: {key}: expected a number")
    made |= {key.replace("-", "_"): given[key] for key in ("show", "micro-batch", "confidence") if key in given}
    return Wanted(str(given.get("format", "markdown")), made | _job(lines, given.get("job", {})))


def _beside(path: Path, name: str) -> str:
    """A model's folder as seen from here; it is given as seen from the file."""
    return str(path.parent / name) if name.startswith(("./", "../")) else name


def _job(lines: Lines, given: Any) -> dict[str, Any]:
    """The rest of the job, by flag or field."""
    if not isinstance(given, Mapping):
        raise ConfigError(f'{lines.of("job")}: job: expected settings such as {{ loss = "liger" }}')
    fields = [name for name in Job.model_fields if name not in OWN]
    made = {}
    for key, value in given.items():
        field = JOB.get(key, key.replace("-", "_"))
        _at(lines.of(key, within="job"), lambda: one_of("setting of the job", field, fields))  # noqa: B023
        made[field] = value
    return made


def _at(where: str, look: Callable[[], Any]) -> Any:
    """What a look-up gives, its mistakes with their place.

    Raises:
        ConfigError: what was raised, with its place.
    """
    try:
        return look()
    except VramplanError as error:
        raise ConfigError(f"{where}: {error.text}") from error
