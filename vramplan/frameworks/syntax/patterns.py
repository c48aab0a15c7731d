"""Regular expressions that others wrote: those whose matching cannot take long."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Any

_parser: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
LONGEST = 20_000
"""Characters of an expression."""
MOST_REPEATS = 4
"""One after another; unsloth's expression for a vision-language model has four. Each takes a name's length of steps."""
REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


def compiled(pattern: str) -> re.Pattern[str]:
    """An expression to match short names with.

    Raises:
        re.error: for one that is none, or that is too long, repeats repeats, or has too many of them.
    """
    if len(pattern) > LONGEST:
        raise re.error(f"longer than {LONGEST:,} characters")
    try:
        repeats = _repeats(_parser.parse(pattern))
    except (RecursionError, OverflowError) as error:
        raise re.error("nested too deeply") from error
    if repeats > MOST_REPEATS:
        raise re.error("too many repeats")
    return re.compile(pattern)


def _repeats(parsed: Any) -> int:
    """The most repeats on a path through an expression, as Python's own parser takes it apart."""
    total = 0
    for kind, argument in parsed:
        name = str(kind)
        if name in REPEATS:
            _, most, body = argument
            inside = _repeats(body)
            if most > 1 and inside:
                raise re.error("repeats of repeats")
            total += inside if most <= 1 else 1
        elif name == "BRANCH":
            total += max(_repeats(branch) for branch in argument[1])
        elif name == "SUBPATTERN":
            total += _repeats(argument[-1])
        elif name in ("ASSERT", "ASSERT_NOT"):
            total += _repeats(argument[1])
        elif name == "ATOMIC_GROUP":
            total += _repeats(argument)
        elif name == "GROUPREF_EXISTS":
            total += max(_repeats(branch) for branch in argument[1:] if branch is not None)
    return total
