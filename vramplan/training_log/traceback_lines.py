"""Calls in printed tracebacks: Python's, IPython's and rich's."""

from __future__ import annotations

import re

from vramplan.training_log.record import Frame

HEADER = "Traceback (most recent call last)"
_AFTER_FILE = re.compile(r"\.py\"?(?:, line (\d{1,9})|:(\d{1,9}))?,? in (?P<function>[\w.<>]{1,200})")
"""``File "a.py", line 3, in f``, ``File a.py:3, in f(x)``, ``a.py in f(x)``, ``| a.py:3 in f |``."""
_EDGES = "│┃| "
_UNDERLINES = {"^", "~", " "}
_EXCEPTION = re.compile(r"[\w.]{1,200}(?:Error|Exception|Interrupt|Exit|Warning)\b")


def parse_frame(text: str) -> Frame | None:
    """The call that a line names; None if it names none."""
    at = text.find(".py")
    while at >= 0 and (match := _AFTER_FILE.match(text, at)) is None:
        at = text.find(".py", at + 3)
    if at < 0 or match is None:
        return None
    quote = text.rfind('"', 0, at)
    start = quote if quote >= 0 else max(text.rfind(" ", 0, at), text.rfind("│", 0, at))
    file = text[start + 1 : at + 3].replace("\\", "/")[-400:]
    line = match[1] or match[2]
    return Frame(file, match["function"].rpartition(".")[2], int(line) if line else None)


def parse_code(text: str) -> str:
    """The line of source below a call; empty for a line that only underlines."""
    code = text.strip(_EDGES).removeprefix("❱").strip()
    return "" if set(code) <= _UNDERLINES else code[:300]


def is_exception(text: str) -> bool:
    """Whether a line begins with an exception's name, as a traceback's last line does."""
    return _EXCEPTION.match(text) is not None


def is_underline(text: str) -> bool:
    """Whether a line only marks a part of the one above."""
    return {*text.strip()} <= _UNDERLINES


def parse_frames(text: str) -> list[Frame]:
    """All calls of a text whose line ends were lost."""
    frames = []
    at = text.find(".py")
    start = 0
    while at >= 0:
        match = _AFTER_FILE.match(text, at)
        if match is not None:
            frame = parse_frame(text[start : match.end()])
            frames += [frame] if frame is not None else []
            start = match.end()
        at = text.find(".py", at + 3)
    return frames
