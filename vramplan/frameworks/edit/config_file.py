"""Change settings in a YAML or JSON text; every other byte stays as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from vramplan.frameworks.edit.key_groups import nearest
from vramplan.frameworks.syntax.config_files import nodes_of


class TextEdit(NamedTuple):
    """Replaces the text from `begin` to `end`."""

    begin: int
    end: int
    new: str


def apply(text: str, cuts: list[TextEdit]) -> str:
    """The text with all edits made; edits at one place stay in their order."""
    parts, at = [], 0
    for cut in sorted(cuts, key=lambda cut: cut.begin):
        parts += [text[at : cut.begin], cut.new]
        at = cut.end
    return "".join([*parts, text[at:]])


def edit(text: str, where: str, changes: Mapping[str, str]) -> str:
    """`text` with these keys set: in place, else after a related key. A value in brackets is added to a list.

    Raises:
        ConfigError: if the text cannot be parsed.
    """
    is_json = text.lstrip().startswith("{")
    root = nodes_of(text.replace("\t", " ") if is_json else text, where)  # tabs may indent JSON, but not YAML
    pairs = {key.value: (key, value) for key, value in root.value}
    cuts = [_replace(text, *pairs[key], value, is_json) for key, value in changes.items() if key in pairs]
    for key, value in changes.items():
        if key not in pairs:
            beside = nearest(key, pairs) or next(reversed(pairs))
            cuts.append(_add(text, *pairs[beside], key, value, is_json or bool(root.flow_style)))
    return apply(text, cuts)


def _replace(text: str, key: Any, node: Any, value: str, is_json: bool) -> TextEdit:
    begin, end = node.start_mark.index, node.end_mark.index
    if begin < key.end_mark.index:  # an alias: its node stands where the anchor is
        alias = re.compile(r"\*[^\s,\]}]+").search(text, key.end_mark.index)
        assert alias is not None
        return TextEdit(*alias.span(), _spelled(value, "", is_json))
    if value.startswith("["):
        return _extend(text, key, node, value[1:-1], is_json)
    colon = text.index(":", key.end_mark.index) + 1
    if _is_null(node):
        return TextEdit(colon, colon, f" {_spelled(value, '', is_json)}")
    if _is_block(node):
        return TextEdit(colon, _end(node, key), f" {_spelled(value, '', is_json)}")
    old = text[begin:end]
    anchor = re.match(r"&\S+\s+", old)
    return TextEdit(begin, end, (anchor[0] if anchor else "") + _spelled(value, old, is_json))


def _extend(text: str, key: Any, node: Any, item: str, is_json: bool) -> TextEdit:
    """The edit that adds an item to a list."""
    begin, end = node.start_mark.index, node.end_mark.index
    text_of_item = _spelled(item, "", is_json)
    if _is_null(node):
        colon = text.index(":", key.end_mark.index) + 1
        return TextEdit(colon, colon, f" [{text_of_item}]")
    if not isinstance(node.value, list):
        return TextEdit(begin, end, f"[{text[begin:end]}, {text_of_item}]")
    if node.flow_style:
        last = node.value[-1].end_mark.index if node.value else begin + 1
        return TextEdit(last, last, (", " if node.value else "") + text_of_item)
    after = _next_line(text, _end(node, key))
    return TextEdit(after, after, _line(text, after, " " * node.start_mark.column + f"- {item}"))


def _add(text: str, neighbor: Any, node: Any, key: str, value: str, in_braces: bool) -> TextEdit:
    """The edit that adds a key after another one, on a line of its own if that has one."""
    spelled = _spelled(value, "", in_braces)
    pair = f"{json.dumps(key)}: {spelled}" if in_braces else f"{key}: {spelled}"
    if in_braces:
        end = max(node.end_mark.index, neighbor.end_mark.index)
        own_line = re.search(r"\n[ \t]*$", text[: neighbor.start_mark.index])
        ends_line = re.match(r"[ \t]*,?[ \t]*\r?\n", text[end:])
        gap = own_line[0] if own_line and ends_line else " "
        return TextEdit(end, end, f",{gap}{pair}")
    after = _next_line(text, _end(node, neighbor))
    return TextEdit(after, after, _line(text, after, " " * neighbor.start_mark.column + pair))


def _is_null(node: Any) -> bool:
    """Whether the value is empty; its marks do not tell where it would stand."""
    return bool(node.start_mark.index == node.end_mark.index)


def _is_block(node: Any) -> bool:
    """Whether it is a block collection or a block text, whose end mark lies after blanks and comments."""
    return (isinstance(node.value, list) and not node.flow_style) or getattr(node, "style", None) in ("|", ">")


def _end(node: Any, key: Any) -> int:
    """The index after the last word of a key's value, before the line's end."""
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
    """A whole line to insert, with the file's own line ending."""
    newline = "\r\n" if "\r\n" in text else "\n"
    return f"{newline}{line}" if at == len(text) and not text.endswith("\n") else f"{line}{newline}"


def _spelled(value: str, old: str, is_json: bool) -> str:
    """A value as the file spells such values."""
    if value.startswith("["):
        return f"[{_spelled(value[1:-1], '', is_json)}]"
    if value in ("true", "false"):
        return value.capitalize() if old in ("True", "False") else value
    return value if not is_json or value.isdigit() else json.dumps(value)


__all__ = ["TextEdit", "apply", "edit"]
