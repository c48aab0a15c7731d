"""Recorded runs: a file with one observation a line, as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vramplan.adaptive.observation import Observation
from vramplan.bounded_read import decoded, parse_json, read_bytes
from vramplan.errors import ConfigError, nearest_names

MOST_BYTES = 256 << 20
"""Of a record: about a million steps."""
COUNTS = ("step", "samples", "tokens")
BATCHES = ("small_batch", "large_batch")
NUMBERS = ("loss", "learning_rate", "small_norm_squared", "large_norm_squared")
KEYS = (*COUNTS, *NUMBERS, *BATCHES, "biased")
DECISION = "kind"
"""The key by which a decision is told from an observation: a log may hold both."""


def record_line(observation: Observation) -> str:
    """An observation on one line, without its end; what is not known is left out."""
    values = {name: getattr(observation, name) for name in KEYS}
    return json.dumps({name: value for name, value in values.items() if value is not None and value is not False})


def read_record(path: Path) -> list[Observation]:
    """The observations of a file; decisions in it are passed over.

    A run that goes on from a checkpoint adds to its record: from a step that comes again on, the later lines count. A
    last line that was cut, as of a run that was killed, is passed over.

    Raises:
        ConfigError: naming the line that is no observation, or whose counts are less than in the one above it.
    """
    observations: list[Observation] = []
    text = decoded(read_bytes(path, MOST_BYTES), path)
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            values = parse_json(line, where)
        except ConfigError:
            if number == len(lines) and not text.endswith("\n"):
                break
            raise
        if not isinstance(values, dict):
            raise ConfigError(f"{where}: expected a JSON object with step, samples, tokens and more")
        if DECISION in values:
            continue
        observation = _observation(values, where)
        while observations and observations[-1].step >= observation.step:
            observations.pop()
        last = observations[-1] if observations else None
        if last is not None and (observation.samples < last.samples or observation.tokens < last.tokens):
            raise ConfigError(f"{where}: fewer samples or tokens than at step {last.step}")
        observations.append(observation)
    if not observations:
        raise ConfigError(
            f"{path}: no observation in it; a training loop writes them to the file that its `record` names"
        )
    return observations


def _observation(values: dict[str, Any], where: str) -> Observation:
    for name in values:
        if name not in KEYS:
            nearest = nearest_names(name, KEYS, 1)
            raise ConfigError(f"{where}: {name}: no such key" + (f"; did you mean {nearest[0]}?" if nearest else ""))
    for name in COUNTS:
        _check_count(values.get(name), name, where, least=0 if name != "step" else 1)
    for name in BATCHES:
        if values.get(name) is not None and not (_is_number(values[name]) and values[name] > 0):
            raise ConfigError(f"{where}: {name}: expected a positive number")
    for name in NUMBERS:
        number = values.get(name)
        if number is not None and not _is_number(number):
            raise ConfigError(f"{where}: {name}: expected a number")
    if not isinstance(values.get("biased", False), bool):
        raise ConfigError(f"{where}: biased: expected true or false")
    return Observation(**values)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_count(count: object, name: str, where: str, least: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not least <= count < 1 << 60:
        raise ConfigError(f"{where}: {name}: expected a whole number from {least} on")
