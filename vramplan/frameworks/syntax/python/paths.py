"""Paths of files as scripts put them together: pathlib's classes and os.path. The file system is not changed."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from vramplan.frameworks.syntax.python.arithmetic import NotKnown
from vramplan.frameworks.syntax.python.values import LONGEST, FilePath

CLASSES = ("pathlib.Path", "pathlib.PosixPath", "pathlib.PurePath", "pathlib.PurePosixPath")
TEXTS = ("name", "stem", "suffix")
"""Attributes that are texts."""
SAME = ("expanduser", "as_posix")
MOVED = ("resolve", "absolute")
"""Methods that make a path absolute."""


def text_of(value: Any) -> str:
    """The text of a path or of a name of a file.

    Raises:
        NotKnown: for another value.
    """
    if isinstance(value, (str, FilePath)):
        return value if isinstance(value, str) else value.text
    raise NotKnown


def joined_paths(parts: list[Any]) -> FilePath:
    """``Path(*parts)``.

    Raises:
        NotKnown: if a part is not known, or the path is too long.
    """
    texts = [text_of(part) for part in parts]
    if sum(len(text) for text in texts) > LONGEST:
        raise NotKnown
    return FilePath(str(PurePosixPath(*texts)))


def called(name: str, positional: list[Any]) -> Any:
    """What a function of pathlib or os.path returns.

    Raises:
        NotKnown: for other functions, and for what only a run would tell.
    """
    if name in CLASSES:
        return joined_paths(positional)
    if name in ("pathlib.Path.cwd", "os.getcwd") and not positional:
        here = str(Path().absolute())
        return FilePath(here) if name.startswith("pathlib") else here
    if name == "os.path.join" and positional:
        return str(PurePosixPath(*(text_of(part) for part in positional)))
    if len(positional) != 1:
        raise NotKnown
    text = text_of(positional[0])
    if name == "os.fspath":
        return text
    if name in ("os.path.abspath", "os.path.realpath"):
        return _absolute(text)
    if name == "os.path.dirname":
        return text.rpartition("/")[0] or ("/" if text.startswith("/") else "")
    if name == "os.path.basename":
        return text.rpartition("/")[2]
    raise NotKnown


def attribute(path: FilePath, name: str) -> Any:
    """An attribute of a path.

    Raises:
        NotKnown: if it is not evaluated.
    """
    pure = PurePosixPath(path.text)
    if name in TEXTS:
        return getattr(pure, name)
    if name == "parent":
        if pure in (PurePosixPath(), PurePosixPath("..")) or pure.name == "..":
            raise NotKnown  # of the folder that the script runs in
        return FilePath(str(pure.parent))
    raise NotKnown


def method(path: FilePath, name: str, positional: list[Any]) -> Any:
    """What a method of a path returns, if it asks the path alone.

    Raises:
        NotKnown: if it is not evaluated.
    """
    pure = PurePosixPath(path.text)
    if name == "joinpath":
        return joined_paths([path, *positional])
    if name in ("with_suffix", "with_name") and len(positional) == 1:
        try:
            return FilePath(str(getattr(pure, name)(text_of(positional[0]))))
        except ValueError:
            raise NotKnown from None
    if positional:
        raise NotKnown
    if name in MOVED:
        return FilePath(_absolute(path.text))
    if name in SAME:
        if path.text.startswith("~"):
            raise NotKnown
        return path.text if name == "as_posix" else path
    raise NotKnown


def _absolute(text: str) -> str:
    """The absolute path of a file that is here; another stays as it is, to be looked for beside the script."""
    if text.startswith("/"):
        return str(Path(text))
    try:
        is_here = Path(text).exists()
    except (OSError, ValueError):
        is_here = False
    return str(Path(text).absolute()) if is_here else text


__all__ = ["attribute", "called", "joined_paths", "method", "text_of"]
