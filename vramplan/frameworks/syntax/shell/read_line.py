"""What ``read`` assigns from a here-document or a here-string."""

from __future__ import annotations

import re

from vramplan.frameworks.syntax.shell.call import Call
from vramplan.frameworks.syntax.shell.state import NAME, Array, State, Value
from vramplan.frameworks.syntax.shell.tree import UNKNOWN

_BLANKS = " \t\n"


def read_values(call: Call, state: State) -> dict[str, Value] | None:
    """The variables that ``read -r`` sets from the call's own text; None if they are not known.

    Read are -r, -a and -d with an empty delimiter (the whole text), and one name, or several if blanks separate.
    """
    text, separators = call.stdin, state.separators
    if text is None or separators is None or UNKNOWN in text or call.is_loose:
        return None
    is_raw = into_array = whole = False
    names: list[str] = []
    waiting = list(call.texts)
    while waiting:
        word = waiting.pop(0)
        if re.fullmatch(r"-[rsa]*d", word) and waiting[:1] == [""]:
            waiting.pop(0)
            whole, word = True, word[:-1]
        elif not re.fullmatch(r"-[rsa]+", word):
            if not NAME.fullmatch(word):
                return None
            names.append(word)
            continue
        is_raw, into_array = is_raw or "r" in word, into_array or "a" in word
    line = text if whole else text.partition("\n")[0]
    if not names or ("\\" in line and not is_raw) or (into_array and len(names) > 1):
        return None
    if into_array:
        parts = _parts(line, separators)
        return None if parts is None else {names[0]: Array(tuple(parts))}
    if len(names) == 1:
        return None if separators.strip(_BLANKS) else {names[0]: line.strip(separators) if separators else line}
    if separators.strip(_BLANKS) or not separators:
        return None
    values = re.split(f"[{separators}]+", line.strip(separators), maxsplit=len(names) - 1)
    return {name: values[number] if number < len(values) else "" for number, name in enumerate(names)}


def lines_of(call: Call) -> dict[str, Value] | None:
    """The array that ``mapfile -t NAME`` makes of the call's own text; None if it is not known."""
    if call.stdin is None or UNKNOWN in call.stdin or call.is_loose or call.texts[:-1] != ["-t"]:
        return None
    name = call.texts[-1]
    lines = call.stdin.removesuffix("\n").split("\n") if call.stdin else []
    return {name: Array(tuple(lines))} if NAME.fullmatch(name) else None


def _parts(line: str, separators: str) -> list[str] | None:
    """A line's fields, by blanks or by one other character."""
    if not separators:
        return [line] if line else []
    if not separators.strip(_BLANKS):
        return [part for part in re.split(f"[{separators}]+", line) if part]
    if len(separators) != 1:
        return None
    parts = line.split(separators)
    return parts[:-1] if not parts[-1] else parts


__all__ = ["read_values"]
