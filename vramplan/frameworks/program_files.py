"""The Python file that a command runs, as a script; whether it is a library's own script or has its name alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vramplan.errors import ConfigError
from vramplan.frameworks.readers import python_script
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.config_files import read_text
from vramplan.frameworks.syntax.lookup import beside
from vramplan.frameworks.syntax.notebook_shell import file_named
from vramplan.frameworks.syntax.python_ast import Script, read_script
from vramplan.inputs.gpu import Gpu

HEADER = ("The HuggingFace", "All rights reserved")
"""What the header of TRL's scripts says (trl/scripts and examples/scripts, 0.12 to 1.16)."""
PARSER = "TrlParser"
"""What TRL's scripts parse their command with."""
HEADER_LINES = 5
_SETS = re.compile(r"^\s*training_args\.(\w+)\s*=(?!=)", re.MULTILINE)
SET_BY_TRL = frozenset(
    {
        "model_init_kwargs", "teacher_model_init_kwargs", "ref_model_init_kwargs", "gradient_checkpointing_kwargs",
        "max_length", "remove_unused_columns", "dataset_kwargs",
    }
)  # fmt: skip
"""What those scripts set themselves of the trainer's arguments; a copy that sets more was changed."""


class ProgramFile(NamedTuple):
    """The Python file that a command runs."""

    text: str
    where: str

    @property
    def is_of_trl(self) -> bool:
        """Whether it is a copy of one of TRL's scripts that sets no further arguments, by its header and its parser."""
        header = "\n".join(self.text.splitlines()[:HEADER_LINES])
        is_copy = all(words in header for words in HEADER) and PARSER in self.text
        return is_copy and set(_SETS.findall(self.text)) <= SET_BY_TRL

    def script(
        self,
        flags: Mapping[str, ConfigValue],
        gpu: Gpu | None,
        environment: Mapping[str, str],
        arguments: Sequence[str],
    ) -> Script | None:
        """What it does with a command's flags; None if it trains nothing.

        Raises:
            ConfigError: if it is not Python.
        """
        script = read_script(self.text, self.where, flags, gpu, environment, arguments)
        return script if python_script.is_training(script) else None


def program_file(program: str, folder: Path, files: Mapping[str, str | None]) -> ProgramFile | None:
    """The file of a command's program; None if it is not here, or no Python file.

    `files` are texts of files that a notebook writes, by name, before those of this machine.

    Raises:
        ConfigError: if it cannot be read, or what a notebook writes to it is not known.
    """
    if not program.endswith(".py"):
        return None
    text, path = written_text(program, files), beside(program, folder)
    if text is not None:
        return ProgramFile(text, program)
    return None if path is None else ProgramFile(read_text(path), str(path))


def written_text(name: str, files: Mapping[str, str | None]) -> str | None:
    """The text of a file that a notebook writes; None if it writes none of that name.

    Raises:
        ConfigError: if what it writes is not known.
    """
    key = file_named(name, files)
    if key is not None and files[key] is None:
        raise ConfigError(f"{name}: what the notebook writes to it is not known without running it; give that file")
    return None if key is None else files[key]


__all__ = ["ProgramFile", "program_file", "written_text"]
