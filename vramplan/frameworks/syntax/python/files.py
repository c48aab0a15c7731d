"""Files that a script writes: ``json.dump(settings, open("train.json", "w"))``, ``file.write(text)``."""

from __future__ import annotations

import ast
import json
from typing import Any

from vramplan.frameworks.syntax.python.arithmetic import NotKnown
from vramplan.frameworks.syntax.python.containers import Containers
from vramplan.frameworks.syntax.python.values import FilePath, Ref

MOST_FILES = 64
LONGEST_FILE = 48 << 10
DUMPS = ("json.dump", "yaml.dump", "yaml.safe_dump")


class Files(Containers):
    """Follows what is written to files whose names are known."""

    def _builtin_open(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        path = positional[0] if positional else keywords.get("file")
        mode = positional[1] if len(positional) > 1 else keywords.get("mode", "r")
        path = path.text if isinstance(path, FilePath) else path
        if not isinstance(path, str) or not isinstance(mode, str):
            raise NotKnown
        if "w" in mode or "x" in mode:
            self._write(path, "", is_new=True)
        elif "a" in mode or "+" in mode:
            self._write(path, None)
        return self.new("instance", cls="file", slots={"name": path})

    def is_file(self, value: Any) -> bool:
        """Whether a value is an open file."""
        return isinstance(value, Ref) and self.at(value).cls == "file"

    def write(self, file: Ref, value: Any) -> None:
        """``file.write(text)``."""
        path = self.at(file).slots.get("name")
        if isinstance(path, str):
            self._write(path, value if isinstance(value, str) else None)

    def dump(self, name: str, positional: list[Any], keywords: dict[str, Any]) -> None:
        """``json.dump(value, file)``; unknown values in it keep their marks."""
        value = positional[0] if positional else None
        file = positional[1] if len(positional) > 1 else keywords.get("fp", keywords.get("stream"))
        if not isinstance(file, Ref) or not self.is_file(file):
            return
        plain = self.plain(value, "the file's content")
        self.write(file, json.dumps(plain) if isinstance(plain, dict) else None)

    def _write(self, path: str, text: str | None, is_new: bool = False) -> None:
        """Add to a file's text; None if what it holds is not known, as after a second file of that name."""
        files = self.script.files
        if path not in files and len(files) >= MOST_FILES:
            return
        if text is None or not self.certain:
            files[path] = None
            return
        old = files.get(path, "") if not is_new else ("" if not files.get(path, "") else None)
        whole = None if old is None else old + text
        files[path] = whole if whole is None or len(whole) <= LONGEST_FILE else None
