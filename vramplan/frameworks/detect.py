"""Detect the framework of a configuration file, script or command, and collect its settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from vramplan.errors import ConfigError, setting
from vramplan.frameworks import slurm
from vramplan.frameworks.command import find_framework, from_command
from vramplan.frameworks.detected_config import DetectedConfig
from vramplan.frameworks.environment import with_exports
from vramplan.frameworks.readers import python_script
from vramplan.frameworks.recognize import recognize
from vramplan.frameworks.registry import environment_variables
from vramplan.frameworks.script_commands import Context, chosen, configs_of
from vramplan.frameworks.settings import ConfigSource, ConfigValue, Note, Spelling
from vramplan.frameworks.syntax import shell
from vramplan.frameworks.syntax.config_files import mapping, read_text
from vramplan.frameworks.syntax.notebook import of_notebook
from vramplan.frameworks.syntax.notebook_shell import files_of, shell_of
from vramplan.frameworks.syntax.python_ast import read_script
from vramplan.inputs.gpu import Gpu

EXECUTED = "the script was run to find out what it trains with (--exec), with stand-ins for what trains"
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".txt")


def from_path(
    path: Path,
    framework: str | None,
    environment: Mapping[str, str] = os.environ,
    gpu: Gpu | None = None,
    number: int | None = None,
    execute: bool = False,
) -> DetectedConfig:
    """The configuration in a file or in a shell script's training command.

    `framework` is None to detect it; `gpu` answers what a Python script asks of its GPU; `number` chooses one of
    several commands, from 1 on. `execute` runs a shell or Python script with stand-ins for what trains, which its user
    has to ask for: everything else in it runs.

    Raises:
        ConfigError: if the file cannot be read, or if a script has no training command or several.
    """
    if execute:
        return _executed(path, framework, environment, gpu, number)
    return from_text(read_text(path), path, framework, environment, gpu, number)


def from_text(
    text: str,
    path: Path,
    framework: str | None,
    environment: Mapping[str, str] = os.environ,
    gpu: Gpu | None = None,
    number: int | None = None,
) -> DetectedConfig:
    """The configuration in the text of a file at `path`, which need not exist; arguments as :func:`from_path` has them.

    Raises:
        ConfigError: if the text cannot be parsed, or if a script has no training command or several.
    """
    is_python, constructor, comment = path.suffix in (".py", ".ipynb"), None, ""
    notes: tuple[Note, ...] = ()
    way = ""
    if _is_shell(path, text):
        environment = {**environment, **slurm.environment(text)}
        commands = shell.commands(text, str(path), environment, substituted=True)
        return chosen(commands, Context(path, framework, environment, gpu), number)
    if is_python:
        is_notebook = path.suffix == ".ipynb"
        python = of_notebook(text, str(path)) if is_notebook else text
        script = read_script(python, str(path), gpu=gpu, environment=environment)
        if is_notebook and not python_script.is_training(script):
            files = files_of(text, str(path), script.files)
            commands = shell.commands(shell_of(text, str(path)), str(path), environment, substituted=True)
            context = Context(path, framework, environment, gpu, files)
            if configs_of(commands, context):
                return chosen(commands, context, number)
        detected, settings = python_script.settings_of(script)
        name, constructor = framework or detected, python_script.constructor_of(script)
        notes, way = python_script.notes_of(script), python_script.way_of(script)
    else:
        settings, comment = _mapping(text, path), _comment_at_top(text)
        name = framework or recognize(settings, str(path), comment)
    variables = _variables(environment)
    spelling: Spelling = "python" if is_python else "yaml"
    exports = with_exports(settings, variables)
    source = ConfigSource(
        settings, exports, where=str(path), spelling=spelling, gpu=gpu, constructor=constructor, comment=comment,
        notes=notes, way=way,
    )  # fmt: skip
    return DetectedConfig(find_framework(name), source)


def from_words(
    words: Sequence[str], framework: str | None, environment: Mapping[str, str] = os.environ, gpu: Gpu | None = None
) -> DetectedConfig:
    """The configuration in the words of a command.

    Raises:
        ConfigError: if it is not a training command.
    """
    return from_line(shell.typed(words), framework, environment, gpu)


def from_line(
    line: str, framework: str | None, environment: Mapping[str, str] = os.environ, gpu: Gpu | None = None
) -> DetectedConfig:
    """The configuration in a command on one line.

    Raises:
        ConfigError: if it is not a training command.
    """
    command = next(iter(shell.commands(line, "the command", {})), None)
    config = command and from_command(command, "the command", Path(), framework, environment, gpu)
    if not config:
        words = command.words if command else []
        scripts = [word for word in words[:2] if word.endswith(SCRIPTS[:2]) and Path(word).is_file()]
        if scripts:
            raise ConfigError(
                f"{' '.join(words[:3])}: a shell script is read as a file, without arguments; give what they"
                f" say by {setting('set', 'KEY=VALUE')}: vramplan check {scripts[0]}"
            )
        start = " ".join(line.split()[:3])
        raise ConfigError(f"{start}: no training command that is known; give {setting('framework')}")
    return config


def _executed(
    path: Path, framework: str | None, environment: Mapping[str, str], gpu: Gpu | None, number: int | None
) -> DetectedConfig:
    """The configuration that a script has when it runs."""
    if path.suffix == ".py":
        from vramplan.frameworks import run_python

        name, settings, guesses = run_python.run_script(path, environment=environment)
        doubts = (Note("doubt", "", f"{guess}: a stand-in's value decided how the script went on") for guess in guesses)
        notes = (Note("warning", "", f"{EXECUTED}, up to its first train()"), *doubts)
        source = ConfigSource(
            settings, _variables(environment), where=str(path), spelling="python", gpu=gpu, notes=notes
        )
        return DetectedConfig(find_framework(framework or name), source)
    if not _is_shell(path, read_text(path)):
        raise ConfigError(f"{setting('exec')}: {path}: runs shell and Python scripts; this file is read as it is")
    from vramplan.frameworks import run_shell

    commands = run_shell.run_script(path, environment=environment)
    config = chosen(commands, Context(path, framework, environment, gpu), number)
    source = config.source
    return config._replace(source=replace(source, notes=(Note("warning", "", EXECUTED), *source.notes)))


def _variables(environment: Mapping[str, str]) -> dict[str, ConfigValue]:
    """The environment's variables that matter."""
    return {key: ConfigValue(value, key) for key, value in environment.items() if key in environment_variables()}


def training_lines(
    path: Path, framework: str | None, environment: Mapping[str, str] = os.environ, execute: bool = False
) -> list[int]:
    """Lines of a shell script's training commands, in order; empty for another file, or for a script that runs.

    Raises:
        ConfigError: if the file cannot be read or parsed.
    """
    if execute or not _is_shell(path, text := read_text(path)):
        return []
    environment = {**environment, **slurm.environment(text)}
    commands = shell.commands(text, str(path), environment, substituted=True)
    return [command.line for command, _ in configs_of(commands, Context(path, framework, environment))]


def _is_shell(path: Path, text: str) -> bool:
    return path.suffix in SCRIPTS or (text.startswith("#!") and path.suffix not in (".py", ".ipynb"))


def _comment_at_top(text: str) -> str:
    """The lines of comment that a file begins with."""
    return "\n".join(takewhile(lambda line: line.startswith("#"), text.splitlines()))


CONFIGS = (".yaml", ".yml", ".json", ".toml", ".cfg", ".conf", ".config", "")


def _mapping(text: str, path: Path) -> dict[str, ConfigValue]:
    """The settings of a YAML, JSON or TOML file.

    Raises:
        ConfigError: if it is something else.
    """
    if path.suffix.lower() not in CONFIGS or path.name in ("Dockerfile", "Makefile"):
        raise ConfigError(
            f"{path}: is no training configuration; checked are YAML, JSON, TOML, shell scripts, Python scripts and"
            " notebooks"
        )
    return mapping(text, str(path))


__all__ = [
    "from_line",
    "from_path",
    "from_text",
    "from_words",
    "training_lines",
]
