"""YAML, JSON and TOML as Python programs load them, keys and numbers included. Nothing in them is executed."""

from __future__ import annotations

import re
from typing import Any

from vramplan.bounded_read import parse_json
from vramplan.errors import ConfigError
from vramplan.frameworks.syntax.config_files import compose

MOST_VALUES = 20_000
"""In one file with its aliases expanded; a script's settings are far fewer, a data set is far more."""
TAG = "tag:yaml.org,2002:"
NULL = re.compile(r"~|null|Null|NULL|")
BOOLEAN = re.compile(r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF")
INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
FLOAT = re.compile(r"[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?|\.[0-9][0-9_]*([eE][-+][0-9]+)?")
EXPONENT = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?")
"""A float as OmegaConf reads it, 1e-4 included (omegaconf 2.3, _utils.py: get_yaml_loader)."""
OTHERS = (
    re.compile(r"[-+]?(0b[01_]+|0[0-7_]+|0x[0-9a-fA-F_]+|[1-9][0-9_]*(:[0-5]?[0-9])+)"),
    re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
    re.compile(r"[0-9]{4}-[0-9][0-9]?-[0-9][0-9]?([Tt \t].*)?", re.DOTALL),
)
"""Numbers of other bases, numbers without a value, dates: not read."""
SCALARS = ("str", "int", "float", "bool", "null", "timestamp")
LONGEST_NUMBER = 400


class NotPlain:
    """A value that is not read: a date, a tag of a program's own."""


NOT_PLAIN = NotPlain()


def load_json(text: str, where: str) -> Any:
    """A JSON document as :func:`json.loads` returns it.

    Raises:
        ConfigError: if it cannot be parsed.
    """
    return parse_json(text, where)


def load_toml(text: str, where: str) -> Any:
    """A TOML document as tomllib returns it.

    Raises:
        ConfigError: if it cannot be parsed.
    """
    from vramplan.frameworks.syntax.config_files import from_toml

    return {name: value.value for name, value in from_toml(text, where).items()}


def load_yaml(text: str, where: str, is_omegaconf: bool = False) -> Any:
    """A YAML document as PyYAML's safe loader returns it (6.0, resolver.py), or OmegaConf's: they differ in 1e-4.

    A value that is not plain is `NOT_PLAIN`.

    Raises:
        ConfigError: if it cannot be parsed, or has too many values.
    """
    root = compose(text, where)
    return None if root is None else _Reader(where, EXPONENT if is_omegaconf else FLOAT).value(root)


class _Reader:
    """Makes values of nodes."""

    def __init__(self, where: str, floats: re.Pattern[str]) -> None:
        self.where, self.floats, self.left = where, floats, MOST_VALUES

    def value(self, node: Any, depth: int = 0) -> Any:
        """The value of a node."""
        self.left -= 1
        if self.left < 0 or depth > 100:
            raise ConfigError(f"{self.where}: more than {MOST_VALUES:,} values, or nested too deeply")
        if isinstance(node.value, str):
            return self._scalar(node)
        if node.tag not in (f"{TAG}map", f"{TAG}seq"):
            return NOT_PLAIN
        if node.tag == f"{TAG}seq":
            return [self.value(item, depth + 1) for item in node.value]
        return self._mapping(node, depth)

    def _mapping(self, node: Any, depth: int) -> Any:
        values: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{TAG}merge":
                sources = value_node.value if value_node.tag == f"{TAG}seq" else [value_node]
                for source in reversed(sources):
                    other = self.value(source, depth + 1)
                    if not isinstance(other, dict):
                        return NOT_PLAIN
                    merged |= other
                continue
            key = self.value(key_node, depth + 1)
            if isinstance(key, (list, dict, NotPlain)):
                return NOT_PLAIN
            values[key] = self.value(value_node, depth + 1)
        return merged | values

    def _scalar(self, node: Any) -> Any:
        text, tag = node.value, str(node.tag).removeprefix(TAG)
        is_quoted = node.style not in (None, "")
        if tag not in SCALARS or (is_quoted and tag != "str"):
            return NOT_PLAIN
        if is_quoted or tag == "str":
            return text
        if NULL.fullmatch(text):
            return None
        if BOOLEAN.fullmatch(text):
            return text.lower() in ("yes", "true", "on")
        if len(text) > LONGEST_NUMBER:
            return NOT_PLAIN if INTEGER.fullmatch(text) or self.floats.fullmatch(text) else text
        if INTEGER.fullmatch(text):
            return int(text.replace("_", ""))
        if self.floats.fullmatch(text):
            return float(text.replace("_", ""))
        return NOT_PLAIN if any(kind.fullmatch(text) for kind in OTHERS) else text


__all__ = ["NOT_PLAIN", "NotPlain", "load_json", "load_toml", "load_yaml"]
