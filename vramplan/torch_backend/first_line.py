"""The first line of an exception's message."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """The first line of an error, with the second if the first ends in a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
