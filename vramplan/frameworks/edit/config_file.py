"""Settings changed in a YAML or JSON text by their places in it: what is not changed stays as it is, byte for byte."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from vramplan.frameworks.edit.key_groups import nearest
from vramplan.frameworks.syntax.config_files import nodes_of


class Cut(NamedTuple):
    """What stands in a text from `begin` to `end` afterwards."""

    begin: int
    end: int
    new: str


def apply(text: str, cuts: list[Cut]) -> str:
    """The text with all of them made; those at one place in the order given."""
    made, at = [], 0
    for cut in sorted(cuts, key=lambda cut: cut.begin):
        made += [text[at : cut.begin], cut.new]
        at = cut.end
    return "".join([*made, text[at:]])


def edit(text: str, where: str, changes: Mapping[str, str]) -> str:
    """`text` with these keys set: in place, else behind their kin. A value in brackets is added to a list.

    Raises:
        ConfigError: where the text cannot be taken apart.
    """
    is_json = text.lstrip().startswith("{")
    root = nodes_of(text.replace("\t", " ") if is_json else text, where)  # tabs may indent JSON, but not YAML
    pairs = {key.value: (key, value) for key, value in root.value}
    cuts = [_replacing(text, *pairs[key], value, is_json) for key, value in changes.items() if key in pairs]
    for key, value in changes.items():
        if key not in pairs:
            beside = nearest(key, pairs) or next(reversed(pairs))
            cuts.append(_adding(text, *pairs[beside], key, value, is_json or bool(root.flow_style)))
    return apply(text, cuts)


def _replacing(text: str, key: Any, node: Any, value: str, is_json: bool) -> Cut:
    begin, end = node.start_mark.index, node.end_mark.index
    if begin < key.end_mark.index:  # an alias: its node stands where the anchor is
        alias = re.compile(r"\*[^\s,\]}]+").search(text, key.end_mark.index)
        assert alias is not None
        return Cut(*alias.span(), _spelt(value, "", is_json))
    if value.startswith("["):
        return _extending(text, key, node, value[1:-1], is_json)
    colon = text.index(":", key.end_mark.index) + 1
    if _is_null(node):
        return Cut(colon, colon, f" {_spelt(value, '', is_json)}")
    if _is_block(node):
        return Cut(colon, _end(node, key), f" {_spelt(value, '', is_json)}")
    old = text[begin:end]
    anchor = re.match(r"&\S+\s+", old)
    return Cut(begin, end, (anchor[0] if anchor else "") + _spelt(value, old, is_json))


def _extending(text: str, key: Any, node: Any, item: str, is_json: bool) -> Cut:
    """A list with one more item."""
    begin, end = node.start_mark.index, node.end_mark.index
    one = _spelt(item, "", is_json)
    if _is_null(node):
        colon = text.index(":", key.end_mark.index) + 1
        return Cut(colon, colon, f" [{one}]")
    if not isinstance(node.value, list):
        return Cut(begin, end, f"[{text[begin:end]}, {one}]")
    if node.flow_style:
        last = node.value[-1].end_mark.index if node.value else begin + 1
        return Cut(last, last, (", " if node.value else "") + one)
    after = _next_line(text, _end(node, key))
    return Cut(after, after, _line(text, after, " " * node.start_mark.column + f"- {item}"))


def _adding(text: str, kin: Any, node: Any, key: str, value: str, in_braces: bool) -> Cut:
    """A new key behind another one, on a line of its own where that has one."""
    word = _spelt(value, "", in_braces)
    said = f"{json.dumps(key)}: {word}" if in_braces else f"{key}: {word}"
    if in_braces:
        end = max(node.end_mark.index, kin.end_mark.index)
        own_line = re.search(r"\n[ \t]*$", text[: kin.start_mark.index])
        ends_line = re.match(r"[ \t]*,?[ \t]*\r?\n", text[end:])
        gap = own_line[0] if own_line and ends_line else " "
        return Cut(end, end, f",{gap}{said}")
    after = _next_line(text, _end(node, kin))
    return Cut(after, after, _line(text, after, " " * kin.start_mark.column + said))


def _is_null(node: Any) -> bool:
    """Whether nothing stands there; where that is, its marks do not tell."""
    return bool(node.start_mark.index == node.end_mark.index)


def _is_block(node: Any) -> bool:
    """Whether it goes over lines by their indent, or is a text that does: its end lies behind blanks and comments."""
    return (isinstance(node.value, list) and not node.flow_style) or getattr(node, "style", None) in ("|", ">")


def _end(node: Any, key: Any) -> int:
    """Behind the last word of a key's value, without the line's end."""
    if _is_null(node) or node.start_mark.index < key.start_mark.index:  # nothing, or an alias
        return int(key.end_mark.index)
    if not _is_block(node):
        return int(node.end_mark.index)
    if not isinstance(node.value, list):
        buffer = node.end_mark.buffer or ""
        return len(buffer[: node.end_mark.index].rstrip())
    last = node.value[-1]
    return _end(last[1], last[0]) if isinstance(last, tuple) else _end(last, node)


def _next_line(text: str, at: int) -> int:
    line = text.find("\n", at)
    return len(text) if line < 0 else line + 1


def _line(text: str, at: int, line: str) -> str:
    """A whole line to be put there, in the file's own way of ending them."""
    newline = "\r\n" if "\r\n" in text else "\n"
    return f"{newline}{line}" if at == len(text) and not text.endswith("\n") else f"{line}{newline}"


def _spelt(value: str, old: str, is_json: bool) -> str:
    """A value as the file spells such values."""
    if value.startswith("["):
        return f"[{_spelt(value[1:-1], '', is_json)}]"
    if value in ("true", "false"):
        return value.capitalize() if old in ("True", "False") else value
    return value if not is_json or value.isdigit() else json.dumps(value)


__all__ = ["Cut", "apply", "edit"]
