"""Files that a script reads its settings from: YAML, JSON, TOML and text, parsed here as the script would load them."""

from __future__ import annotations

import ast
import json
from os.path import normpath
from pathlib import Path
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.syntax.config_files import read_text
from vramplan.frameworks.syntax.lookup import beside, from_here, is_in_project
from vramplan.frameworks.syntax.plain_data import MOST_VALUES, NotPlain, load_json, load_toml, load_yaml
from vramplan.frameworks.syntax.python import omegaconf_functions, paths
from vramplan.frameworks.syntax.python.access import OMEGACONF
from vramplan.frameworks.syntax.python.arithmetic import NotKnown, bounded
from vramplan.frameworks.syntax.python.files import Files
from vramplan.frameworks.syntax.python.hydra_files import composed
from vramplan.frameworks.syntax.python.values import LONGEST, FilePath, Function, Ref, Unknown, is_known
from vramplan.frameworks.syntax.shell import UNKNOWN

YAML = ("yaml.safe_load", "yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_yaml")
JSON = ("json.load", "json.loads")
TOML = ("tomllib.load", "tomllib.loads", "tomli.load", "tomli.loads", "toml.load", "toml.loads")
EXISTS = ("os.path.exists", "os.path.isfile")
DUMP_OPTIONS = ("indent", "ensure_ascii", "sort_keys")
SETTINGS = (".yaml", ".yml", ".json", ".toml")
"""Ends of the names of files that hold settings; others may be what a run leaves."""


class DataFiles(Files):
    """Follows what is read from files whose names are known."""

    # -- functions and methods -----------------------------------------------------------------------------------------

    def read_call(self, name: str, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        """What a function that loads a file or a text returns; NotImplemented for others."""
        try:
            if name in (*YAML, *JSON, *TOML):
                return self._loaded(name, positional, node)
            if name.endswith("OmegaConf.load") and len(positional) == 1:
                text, where = self._text_in(positional[0], node)
                return self.rebuilt(load_yaml(text, where, is_omegaconf=True), OMEGACONF)
            if name.rpartition(".")[0].endswith("OmegaConf"):
                return omegaconf_functions.called(self, name.rpartition(".")[2], positional)
            if name == "json.dumps" and len(positional) == 1 and keywords.keys() <= {*DUMP_OPTIONS}:
                return self._dumped(positional[0], keywords)
            if name in EXISTS and len(positional) == 1:
                return self._is_here(paths.text_of(positional[0]))
            if not keywords:
                return paths.called(name, positional)
        except NotKnown:
            pass
        except ConfigError as error:
            self.missing(str(error))
        loads = name in (*YAML, *JSON, *TOML) or name.endswith("OmegaConf.load")
        return self.unknown(node) if loads else NotImplemented

    def path_method(
        self, path: FilePath, name: str, positional: list[Any], keywords: dict[str, Any], node: ast.AST
    ) -> Any:
        """A method of a path."""
        try:
            if name in ("exists", "is_file") and not positional:
                return self._is_here(path.text)
            if name == "read_text":
                return self._read(path.text, node)[0]
            if name == "open":
                return self._builtin_open([path, *positional], keywords, node)
            if not keywords:
                return paths.method(path, name, positional)
        except NotKnown:
            pass
        except ConfigError as error:
            self.missing(str(error))
        return self.unknown(node, *positional, *keywords.values())

    def read_method(self, file: Ref, node: ast.AST) -> Any:
        """``file.read()``."""
        try:
            return self._text_in(file, node)[0]
        except NotKnown:
            pass
        except ConfigError as error:
            self.missing(str(error))
        return self.unknown(node)

    def _loaded(self, name: str, positional: list[Any], node: ast.AST) -> Any:
        value = positional[0] if positional else None
        is_path = name == "toml.load"
        if isinstance(value, str) and not is_path:
            text, where = value, self.place(node)
        elif self.is_file(value) or is_path:
            text, where = self._text_in(value, node)
        else:
            raise NotKnown
        load = load_yaml if name in YAML else load_json if name in JSON else load_toml
        return self.rebuilt(load(text, where))

    def _dumped(self, value: Any, keywords: dict[str, Any]) -> str:
        plain = self.plain(value, "")
        if UNKNOWN in repr(plain) or not all(is_known(option) for option in keywords.values()):
            raise NotKnown
        return str(bounded(json.dumps(plain, **keywords)))

    def hydra_config(self, function: Function, node: ast.AST) -> Any:
        """The configuration that hydra hands to a function; None if it is not known."""
        options = dict(function.options)
        name, folder = options.get("config_name"), options.get("config_path", ".")
        place = self.place(function.node)
        if isinstance(name, str) and isinstance(folder, str):
            own = Path(place.rpartition(":")[0]).parent
            try:
                return composed(self, own / folder, name, place)
            except NotKnown:
                self.missing(f"{place}: what hydra makes of {name} is not known without running it")
            except ConfigError as error:
                self.missing(str(error))
        return None

    # -- files ---------------------------------------------------------------------------------------------------------

    def _text_in(self, value: Any, node: ast.AST) -> tuple[str, str]:
        """(text, file) of an open file or of the name of one."""
        if isinstance(value, Ref):
            name = self.at(value).slots.get("name") if self.is_file(value) else None
            return self._read(paths.text_of(name), node)
        return self._read(paths.text_of(value), node)

    def _is_here(self, name: str) -> bool:
        """Whether a file exists, which is known of one with settings that is here.

        Raises:
            NotKnown: for another.
        """
        if self._is_written(name) or not name.endswith(SETTINGS) or beside(name, Path(self.where).parent) is None:
            raise NotKnown
        return True

    def _is_written(self, name: str) -> bool:
        """Whether the script itself may write a file of that name."""
        return any(normpath(name) == normpath(other) for other in self.script.files)

    def _read(self, name: str, node: ast.AST) -> tuple[str, str]:
        """(text, where it is) of a file that the script opens.

        Raises:
            NotKnown: if the script may have written it, or it is longer than settings are.
            ConfigError: if it is not here or cannot be read.
        """
        if self._is_written(name):
            raise NotKnown
        path = beside(name, Path(self.where).parent)
        if path is None:
            raise ConfigError(f"{self.place(node)} reads {name[:200]}, which is not here or beside the script")
        if not is_in_project(path, Path(self.where).parent):
            raise ConfigError(f"{self.place(node)} reads {name[:200]}, which is not in the script's project")
        text = read_text(path)
        if len(text) > LONGEST:
            raise NotKnown
        self.script.read.setdefault(from_here(path), self.place(node))
        return text, from_here(path)

    # -- values --------------------------------------------------------------------------------------------------------

    def rebuilt(self, value: Any, cls: str | None = None) -> Any:
        """Data as the script's own objects.

        Raises:
            NotKnown: if it is too much.
        """
        left = [MOST_VALUES]
        return self._rebuilt(value, cls, left)

    def _rebuilt(self, value: Any, cls: str | None, left: list[int]) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise NotKnown
        self.step()
        if isinstance(value, dict):
            if any(str(key).startswith("\0") for key in value):
                raise NotKnown
            return self.new("dict", cls=cls, slots={key: self._rebuilt(one, cls, left) for key, one in value.items()})
        if isinstance(value, list):
            return self.new("list", cls=cls, items=[self._rebuilt(one, cls, left) for one in value])
        if isinstance(value, NotPlain) or (cls == OMEGACONF and isinstance(value, str) and _is_computed(value)):
            return Unknown("a value of the file")
        try:
            return bounded(value)
        except NotKnown:
            return Unknown("a value of the file")


def _is_computed(text: str) -> bool:
    """Whether OmegaConf makes something else of a text: an interpolation, or a mark that it is missing."""
    return "${" in text or text == "???"


__all__ = ["DataFiles"]
