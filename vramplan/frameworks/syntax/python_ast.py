"""A Python script's calls and objects with the values that are known on every path. Nothing in it is executed."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Mapping, Sequence

from vramplan.errors import ConfigError
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.python.f_strings import without_new_f_strings
from vramplan.frameworks.syntax.python.follow import Follower
from vramplan.frameworks.syntax.python.script import Call, Script, Thing, Training
from vramplan.inputs.gpu import Gpu

MOST_CHARACTERS = 300_000
"""Python's own parser takes some hundred bytes of memory for each character."""
DEEPEST = 6_000
"""Python frames for nested expressions and calls."""


def parse(text: str) -> ast.Module:
    """The syntax tree, also of f-strings that are newer than this Python.

    Raises:
        SyntaxError: if it is not Python.
    """
    try:
        return ast.parse(text)
    except SyntaxError:
        older = without_new_f_strings(text) if sys.version_info < (3, 12) else text
        if older == text:
            raise
        return ast.parse(older)


def read_script(
    text: str,
    where: str,
    flags: Mapping[str, ConfigValue] | None = None,
    gpu: Gpu | None = None,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] | None = None,
) -> Script:
    """The calls and objects of a script; `flags` are its command's, None if the script is read alone.

    `arguments` are all words behind the script in that command.

    `gpu` answers what it asks of its GPU; without one, bf16 is supported. `environment` has the variables that are set.

    Raises:
        ConfigError: if it is not Python, naming the line, or too long to be followed.
    """
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"{where}: {len(text):,} characters are no training script (at most {MOST_CHARACTERS:,})")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes
            tree = parse(text)
    except SyntaxError as error:
        raise ConfigError(f"{where}:{error.lineno or 1}: is no Python: {error.msg}") from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise ConfigError(f"{where}: is no Python that can be read ({error})") from error
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(max(limit, DEEPEST))
        return Follower(text, where, flags, gpu, environment, arguments).read(tree)
    except (RecursionError, MemoryError) as error:
        raise ConfigError(f"{where}: nested too deeply") from error
    finally:
        sys.setrecursionlimit(limit)


__all__ = ["Call", "Script", "Thing", "Training", "parse", "read_script"]
