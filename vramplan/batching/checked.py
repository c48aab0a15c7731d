"""The settings of a sampler and the lengths of the samples: checked, or refused in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

from vramplan.errors import ConfigError, setting
from vramplan.units import counted

LONGER = ("refuse", "truncate", "alone")


def whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number of at least ``least``."""
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise ConfigError(f"{setting(name, value)}: expected a whole number of {least} or more")
    return number


def token_lengths(lengths: Iterable[Any]) -> list[int]:
    """Tokens of each sample."""
    numbers = []
    for position, length in enumerate(lengths):
        try:
            number = index(length)
        except TypeError:
            number = -1
        if isinstance(length, bool) or number < 0:
            raise ConfigError(f"sample {position}: its length is {length!r}, expected a whole number of tokens")
        if number == 0:
            raise ConfigError(f"sample {position} has no tokens; leave it out of the data set")
        numbers.append(number)
    if not numbers:
        raise ConfigError("the data set is empty: there is no sample to make batches of")
    return numbers


def limited(lengths: list[int], longest: int, longer: str) -> list[int]:
    """The lengths under the limit of a single sample: refused, cut, or as they are for those that go alone."""
    if longer not in LONGER:
        raise ConfigError(f"{setting('longer', longer)}: expected {', '.join(LONGER[:-1])} or {LONGER[-1]}")
    if longer == "truncate":
        return [min(length, longest) for length in lengths]
    if longer == "refuse" and max(lengths) > longest:
        beyond = [position for position, length in enumerate(lengths) if length > longest]
        which = f"sample {beyond[0]} has {lengths[beyond[0]]:,} tokens"
        if len(beyond) == len(lengths):
            which = f"every sample is longer, the shortest has {min(lengths):,} tokens"
        elif len(beyond) > 1:
            which += f"; {counted(len(beyond), 'sample')} in all are too long"
        raise ConfigError(
            f"{which}; the longest that fits has {longest:,}: choose {setting('longer', 'truncate')} or "
            f"{setting('longer', 'alone')}, or a larger {setting('max_tokens')}"
        )
    return lengths


def longest_allowed(longest_sample: int | None, max_tokens: int, multiple: int) -> int:
    """Tokens of the longest single sample."""
    most = max_tokens // multiple * multiple
    if not most:
        raise ConfigError(f"{setting('pad_to_multiple_of', multiple)}: more than {setting('max_tokens', max_tokens)}")
    if longest_sample is None:
        return most
    if whole("longest_sample", longest_sample) > most:
        raise ConfigError(f"{setting('longest_sample', longest_sample)}: a micro-batch has at most {most:,} tokens")
    return longest_sample


_POSITION = (("epoch", 0), ("steps_done", 0), ("divisible_by", 1))
"""Numbers of a saved state, and the least of each."""


def position(state: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[int, int, int]:
    """Epoch, steps done and ``divisible_by`` of a saved state, if its optimizer steps have the same samples."""
    try:
        epoch, step, multiple = (whole(name, state[name], least) for name, least in _POSITION)
        changed = next((name for name, value in settings.items() if state["settings"][name] != value), None)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"not a saved state of this sampler: {error}") from error
    if changed is not None:
        raise ConfigError(
            f"the saved state has {setting(changed, state['settings'][changed])}, this sampler "
            f"{setting(changed, settings[changed])}: its optimizer steps have other samples; begin the epoch anew, or "
            "use the saved setting"
        )
    return epoch, step, multiple
