"""The configuration that ``@hydra.main`` composes: a file, the files of its defaults list, and the command's words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramplan.bounded_read import is_file
from vramplan.errors import ConfigError
from vramplan.frameworks.syntax.config_files import read_text
from vramplan.frameworks.syntax.lookup import from_here, is_in_project
from vramplan.frameworks.syntax.plain_data import load_yaml
from vramplan.frameworks.syntax.python.access import OMEGACONF
from vramplan.frameworks.syntax.python.arithmetic import NotKnown
from vramplan.frameworks.syntax.python.omegaconf_functions import dotted, merge
from vramplan.frameworks.syntax.python.values import Ref

if TYPE_CHECKING:
    from vramplan.frameworks.syntax.python.data_files import DataFiles

MOST_FILES = 40
OWN_FLAGS = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd", "--multirun", "-m")
"""Flags of hydra's own that choose another configuration, or run several."""


def composed(machine: DataFiles, folder: Path, name: str, place: str) -> Ref:
    """The configuration (hydra 1.3, _internal/config_loader_impl.py).

    Args:
        machine: follows the script.
        folder: of the configuration files.
        name: of the primary one.
        place: where the script names it.

    Raises:
        NotKnown: for what only hydra itself would tell.
        ConfigError: if a file is not here or cannot be parsed.
    """
    words = list(machine.arguments or ())
    if any(word.partition("=")[0] in OWN_FLAGS for word in words):
        raise NotKnown
    groups = {word.partition("=")[0]: word.partition("=")[2] for word in words if "=" in word}
    reader = _Reader(machine, folder, place, groups)
    result = reader.config(name.removesuffix(".yaml"), "")
    rest = [word for word in words if word.lstrip("+").partition("=")[0] not in reader.chosen]
    if any(word.startswith("~") for word in rest):
        raise NotKnown
    merge(machine, result, dotted(machine, rest))
    return result


class _Reader:
    """Reads the files of one configuration."""

    def __init__(self, machine: DataFiles, folder: Path, place: str, groups: dict[str, str]) -> None:
        self.machine, self.folder, self.place, self.groups = machine, folder, place, groups
        self.chosen: set[str] = set()
        """Groups whose option the command chooses."""
        self.count = 0

    def config(self, name: str, group: str) -> Ref:
        """A file with its defaults list."""
        self.count += 1
        if self.count > MOST_FILES or ".." in name:
            raise NotKnown
        values, package = self._values(f"{group}/{name}" if group else name)
        defaults = values.pop("defaults", []) if isinstance(values, dict) else None
        if not isinstance(defaults, list):
            raise NotKnown
        of_hydra = values.pop("hydra", None)
        if isinstance(of_hydra, dict) and of_hydra.keys() & {"mode", "sweeper", "searchpath"}:
            raise NotKnown
        machine = self.machine
        own = machine.rebuilt(values, OMEGACONF)
        result = machine.new("dict", cls=OMEGACONF)
        is_placed = "_self_" in defaults
        for entry in defaults:
            if entry == "_self_":
                merge(machine, result, own)
            else:
                merge(machine, result, self._entry(entry, group))
        if not is_placed:  # behind the others since hydra 1.1, before them until then
            if defaults and values and machine.at(result).slots.keys() & values.keys():
                raise NotKnown
            merge(machine, result, own)
        return result if package == "_global_" or not group else self._below(group, result)

    def _entry(self, entry: Any, group: str) -> Ref:
        """What an item of a defaults list stands for: a file, or an option of a group."""
        if isinstance(entry, str):
            return self.config(entry, group)
        if not isinstance(entry, dict) or len(entry) != 1 or group:
            raise NotKnown
        ((key, option),) = entry.items()
        name = str(key).removeprefix("optional ")
        if name.startswith("override ") or "@" in name:
            raise NotKnown
        if name in self.groups:
            option = self.groups[name]
            self.chosen.add(name)
        if option is None:
            return self.machine.new("dict", cls=OMEGACONF)
        if not isinstance(option, str):
            raise NotKnown
        return self.config(option, name)

    def _below(self, group: str, inner: Ref) -> Ref:
        """A configuration in its group's package."""
        for name in reversed(group.split("/")):
            inner = self.machine.new("dict", cls=OMEGACONF, slots={name: inner})
        return inner

    def _values(self, name: str) -> tuple[Any, str]:
        """(values, package) of a file."""
        path = self.folder / f"{name}.yaml"
        if not is_file(path):
            raise ConfigError(f"{self.place} reads {path}, which is not here")
        if not is_in_project(path, Path(self.machine.where).parent):
            raise NotKnown
        text = read_text(path)
        self.machine.script.read.setdefault(from_here(path), self.place)
        header = re.search(r"^# *@package +(\S+)", text, re.MULTILINE)
        if header is not None and header[1] not in ("_global_", "_group_"):
            raise NotKnown
        values = load_yaml(text, str(path), is_omegaconf=True)
        return ({} if values is None else values), "" if header is None else header[1]


__all__ = ["composed"]
