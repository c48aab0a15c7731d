"""Configuration files: YAML and JSON as people write them, each key with its line. Nothing in them is executed."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramplan.bounded_read import MOST_DIGITS, decoded, parse_json, read_bytes
from vramplan.errors import ConfigError
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.lookup import beside

MOST_VALUES = 100_000
"""In one file with its aliases expanded; more is an attack, not a configuration."""
MOST_CHARACTERS = 40 << 10
"""Of YAML and TOML, whose readers take a second for fifty kilobytes; configurations have a few thousand."""
MOST_BITS = MOST_DIGITS * 10 // 3
PLAIN_TAG = re.compile(r"tag:yaml\.org,2002:\w+")
"""Of PyYAML's safe types; behind the same words, ``python/object`` and its kin make objects."""
DEEPEST = 100
"""Nested brackets of YAML and parts of a dotted key of TOML: their readers take quadratic time and memory."""


def named(value: ConfigValue, folder: Path, key: str) -> dict[str, ConfigValue]:
    """The settings of a key that takes a mapping, JSON in place, or the name of a file.

    Comment lines of the file are dropped: tutorials annotate their JSON.

    Raises:
        ConfigError: for a file that does not exist or cannot be parsed.
    """
    if isinstance(value.value, dict):
        return {name: ConfigValue(inner, f"{value.place}: {name}") for name, inner in value.value.items()}
    text = str(value.value).strip()
    if text.startswith("{"):
        return from_json(text, value.place)
    path = beside(text, folder)
    if path is None:
        shown = " ".join(text.split())[:80]
        raise ConfigError(f"{value.place}: {key}: no file {shown} here or beside the configuration")
    return mapping(re.sub(r"^\s*//.*$", "", read_text(path), flags=re.MULTILINE), str(path))


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        ConfigError: if it cannot be read, is empty or too large, or is not UTF-8 text.
    """
    raw = read_bytes(path)
    if b"\0" in raw:
        raise ConfigError(f"{path}: is binary; give a text file")
    text = decoded(raw, path)
    if not text.strip():
        raise ConfigError(f"{path}: is empty")
    return text


def read_mapping(path: Path) -> dict[str, ConfigValue]:
    """The top-level keys of a YAML or JSON file.

    Raises:
        ConfigError: naming the line of what is broken.
    """
    return mapping(read_text(path), str(path))


def mapping(text: str, where: str) -> dict[str, ConfigValue]:
    """The top-level keys of a text: TOML by the file's name, JSON if it begins with a brace, else YAML.

    Raises:
        ConfigError: naming the line of what is broken.
    """
    if where.endswith(".toml"):
        return from_toml(text, where)
    return from_json(text, where) if text.lstrip().startswith("{") else from_yaml(text, where)


def from_json(text: str, where: str) -> dict[str, ConfigValue]:
    """The top-level keys of JSON, without line numbers; of duplicate keys the last counts, as in Python's reader.

    Raises:
        ConfigError: if it cannot be parsed.
    """
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        unique = dict(items)
        if len(unique) < len(items):
            repeated.extend(name for name, count in Counter(name for name, _ in items).items() if count > 1)
        return unique

    raw = parse_json(text, where, object_pairs_hook=pairs)
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: expected settings by name, found {_kind(raw)}")
    settings = {key: ConfigValue(value, where) for key, value in raw.items()}
    for name in repeated:
        owner = name if name in raw else next((key for key in raw if f'"{name}"' in json.dumps(raw[key])), "")
        if owner:
            settings[owner] = settings[owner]._replace(note=_repeated(name, owner))
    return settings


def _repeated(name: str, owner: str) -> str:
    return "stands twice: the last one counts" if name == owner else f"{name} in it stands twice: the last one counts"


def from_toml(text: str, where: str) -> dict[str, ConfigValue]:
    """The top-level keys of TOML, without line numbers.

    Raises:
        ConfigError: if it cannot be parsed.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    _check_size(text, where)
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > DEEPEST and max(part.count(".") for part in line.split("=")) > DEEPEST:
            raise ConfigError(f"{where}:{number}: nested too deeply")
    left = [MOST_VALUES]
    try:
        raw = tomllib.loads(text)
        return {key: ConfigValue(_plain(value, where, left), where) for key, value in raw.items()}
    except RecursionError as error:
        raise ConfigError(f"{where}: nested too deeply") from error
    except ValueError as error:  # its own, and that of an integer of too many digits
        raise ConfigError(f"{where}: broken TOML: {str(error).splitlines()[0]}") from error


def _check_size(text: str, where: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"{where}: is larger than {MOST_CHARACTERS >> 10} KiB, the most that is read of YAML or TOML")


def from_yaml(text: str, where: str) -> dict[str, ConfigValue]:
    """The top-level keys of YAML as PyYAML reads it, which the frameworks use: of duplicate keys the last counts.

    Raises:
        ConfigError: naming the line of what is broken.
    """
    repeated: list[tuple[int, str]] = []
    raw = _parsed(text, where, "rt", "load", repeated)
    _refuse_tag(raw, where)
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where}: expected settings by name, found {_kind(raw)}")
    lines: Any = getattr(raw, "lc", None)
    settings, left = {}, [MOST_VALUES]
    for key in raw:
        try:
            line = lines.key(key)[0] + 1
        except (AttributeError, KeyError, TypeError):  # merged in from an anchor
            line = None
        try:
            settings[str(key)] = ConfigValue(_plain(raw[key], where, left), f"{where}:{line}" if line else where)
        except RecursionError as error:
            raise ConfigError(f"{where}: {key}: nested too deeply") from error
    starts = {str(key): line for key, (line, *_) in (getattr(lines, "data", None) or {}).items()} if repeated else {}
    for line, name in repeated:
        owner = max((key for key in starts if starts[key] <= line), key=lambda key: starts[key], default="")
        if owner in settings:
            settings[owner] = settings[owner]._replace(note=_repeated(name, owner))
    return settings


def load_yaml(text: str, where: str) -> Any:
    """The document with comments and order, as ruamel.yaml keeps them.

    Raises:
        ConfigError: naming the line of what is broken.
    """
    return _parsed(text, where, "rt", "load")


def nodes_of(text: str, where: str) -> Any:
    """The document's mapping as nodes with their places in the text.

    Raises:
        ConfigError: naming the line of what is broken.
    """
    root = _parsed(text, where, "safe", "compose")
    if not isinstance(getattr(root, "value", None), list) or not root.value:
        raise ConfigError(f"{where}: expected settings by name")
    return root


def compose(text: str, where: str) -> Any:
    """The document's nodes; None for an empty one.

    Raises:
        ConfigError: naming the line of what is broken.
    """
    return _parsed(text, where, "safe", "compose")


def _parsed(text: str, where: str, kind: str, method: str, repeated: list[tuple[int, str]] | None = None) -> Any:
    """A document; each key that stands twice goes to `repeated` with its line, from 0."""
    _check_size(text, where)
    depth = 0
    for bracket in re.finditer(r"[\[\]{}]", text):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > DEEPEST:
            raise ConfigError(f"{where}: nested too deeply")
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError, RoundTripConstructor
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    class LastCounts(RoundTripConstructor):
        """PyYAML's rule; ruamel.yaml keeps the first value if it is told to allow duplicates (0.18, constructor.py)."""

        def check_mapping_key(self, node: Any, key_node: Any, mapping: Any, key: Any, value: Any) -> bool:
            if key in mapping and repeated is not None:
                repeated.append((key_node.start_mark.line, str(key)))
            return True

    reader = YAML(typ=kind, pure=True)
    if kind == "rt":
        reader.Constructor = LastCounts
    reader.version = (1, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 1e-4 without a dot: a reader converts it
            return getattr(reader, method)(text)
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{where}:{line}: a key stands twice: {str(error.problem).splitlines()[0]}") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{where}:{line}: broken YAML: {error.problem or error.context}") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: nested too deeply") from error
    except (
        YAMLError,
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
    ) as error:  # its scanner's
        raise ConfigError(f"{where}: broken YAML: {str(error).splitlines()[0] if str(error) else error!r}") from error


def _refuse_tag(value: Any, where: str) -> None:
    tag = getattr(getattr(value, "tag", None), "value", None)
    if tag is not None and not PLAIN_TAG.fullmatch(str(tag)):
        raise ConfigError(f"{where}: the tag {tag} is no plain value: YAML's safe loaders refuse it")


def _kind(document: Any) -> str:
    """What a file without settings holds instead."""
    if isinstance(document, list):
        return "a list, as a data set is (--dataset FILE gives one)"
    return "nothing" if document is None else "a text" if isinstance(document, str) else f"a {type(document).__name__}"


def _plain(value: Any, where: str, left: list[int]) -> Any:
    """Plain Python values in place of ruamel.yaml's."""
    left[0] -= 1
    if left[0] < 0:
        raise ConfigError(f"{where}: more than {MOST_VALUES:,} values: aliases that multiply?")
    _refuse_tag(value, where)
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key], where, left) for key in value}
    if isinstance(value, (list, tuple)):
        return [_plain(item, where, left) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ConfigError(f"{where}: a number of more than {MOST_DIGITS} digits")
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return str(value)
