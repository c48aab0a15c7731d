"""Change settings of a command in a shell text; every other byte stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from vramplan.errors import ConfigError
from vramplan.frameworks.detected_config import Origin
from vramplan.frameworks.edit.config_file import TextEdit, apply
from vramplan.frameworks.edit.key_groups import nearest
from vramplan.frameworks.framework import Framework
from vramplan.frameworks.syntax import argv
from vramplan.frameworks.syntax.argv import Piece


def edit(text: str, framework: Framework, origin: Origin, changes: Mapping[str, str]) -> str:
    """`text` with these settings: in place, else after a related flag, else at the command's end, where they override.

    Raises:
        ConfigError: for a value that no flag can hold.
    """
    command = _CommandText(text, framework, origin)
    edits = []
    for key, value in changes.items():
        if value.startswith("["):
            raise ConfigError(f"{key}: a list is added to in the file of settings, not by a flag")
        piece = command.flags.get(key)
        edits.append(command.add(key, value) if piece is None else command.replace(piece, key, value))
    return apply(text, edits)


class _CommandText:
    """The framework's words of a command with their places in the text."""

    def __init__(self, text: str, framework: Framework, origin: Origin) -> None:
        self.text, self.framework = text, framework
        command, count = origin
        self.words = command.words[len(command.words) - count :]
        self.spans = command.spans[len(command.words) - count :]
        self.pieces = list(argv.pieces(self.words, pairs_end_flags=framework.overrides == "hydra"))
        self.flags = {piece.name: piece for piece in self.pieces if piece.name and self._is_written(piece)}
        hidden = {piece.name for piece in self.pieces} - self.flags.keys()
        self.visible_flags = {name: piece for name, piece in self.flags.items() if name not in hidden}
        self.end = command.spans[-1][1]

    def _is_written(self, piece: Piece) -> bool:
        """Whether it stands in the command itself, not in a variable that holds more than a value."""
        spans = self.spans[piece.first : piece.last + 1]
        flag = self.text[slice(*spans[0])]
        return flag.startswith(("-", piece.name)) and all(self.spans.count(span) == 1 for span in spans)

    def replace(self, piece: Piece, key: str, value: str) -> TextEdit:
        """The edit that gives an existing flag another value."""
        begin, end = self.spans[piece.first]
        flag = self.text[begin:end]
        if "=" in flag:
            return TextEdit(begin + flag.index("=") + 1, end, value)
        if re.match(r"--no[-_]", flag):
            return TextEdit(begin, end, self._spelled(key, value))
        if piece.first == piece.last:
            return TextEdit(begin, end, flag if value == "true" else f"{flag} {value}")
        return TextEdit(self.spans[piece.first + 1][0], self.spans[piece.last][1], value)

    def add(self, key: str, value: str) -> TextEdit:
        """The edit that adds a flag after a related one, or after all, with the blanks between flags there."""
        beside = nearest(key, self.visible_flags)
        if beside is None or key in {piece.name for piece in self.pieces}:  # set in a variable: the last flag counts
            written = [piece for piece in self.pieces if piece.name and self._is_written(piece)]
            return TextEdit(self.end, self.end, self._gap(written[-1] if written else None) + self._spelled(key, value))
        piece = self.visible_flags[beside]
        end = self.spans[piece.last][1]
        return TextEdit(end, end, self._gap(piece) + self._spelled(key, value))

    def _gap(self, piece: Piece | None) -> str:
        """The text before a flag: a blank, or a line continuation and its indent."""
        if piece is None:
            return " "
        begin = self.spans[piece.first][0]
        before = self.text[:begin]
        blank = re.search(r"(?:[ \t]|\\\r?\n)+$", before)
        return blank[0] if blank else " "

    def _spelled(self, key: str, value: str) -> str:
        """A setting spelled as the command spells its others."""
        flags = [self.text[slice(*self.spans[piece.first])] for piece in self.visible_flags.values()]
        named = [self.words[piece.first] for piece in self.pieces if not piece.name]
        after_file = any(word.endswith((".yaml", ".yml", ".json")) for word in named)
        if self.framework.overrides == "hydra" or (self.framework.overrides == "pairs" and after_file):
            return f"{key}={value}"
        dashed = self.framework.overrides == "click" or any("-" in flag.lstrip("-").partition("=")[0] for flag in flags)
        name = f"--{key.replace('_', '-') if dashed else key}"
        if self.framework.overrides == "click" and value == "true" and key not in self.framework.valued_flags:
            return name
        joined = sum("=" in flag for flag in flags) > len(flags) / 2
        return f"{name}={value}" if joined else f"{name} {value}"
