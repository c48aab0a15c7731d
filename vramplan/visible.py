"""Text that others wrote, made harmless for a terminal: control characters are shown, not sent.

An escape sequence in a key or a path would move the cursor, set the title or hide a verdict; marks for writing from
right to left would turn a name around.
"""

from __future__ import annotations

import re

_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1, but the tab and the end of a line
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # directions, nothing, ends of lines
    "\ud800-\udfff\U000e0000-\U000e007f"  # halves of characters, invisible tags
)
"""None of them is printable by :meth:`str.isprintable`, so that most texts need no pattern."""


def visible(text: str) -> str:
    r"""The text on one line, its hidden characters as JSON writes them.

    >>> visible("a\x1b[2Jb\n")
    'a\\u001b[2Jb\\u000a'
    """
    return text if text.isprintable() else re.sub(f"[{_HIDDEN}\t\n]", _shown, text)


def visible_lines(text: str) -> str:
    """The same, with its tabs and ends of lines; valid JSON stays valid JSON with the same values."""
    return text if text == "\n" or text.isprintable() else re.sub(f"[{_HIDDEN}]", _shown, text)


def _shown(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
