"""From a file, a script or a command's words to the framework they are meant for and what they set."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

from vramplan.errors import ConfigError, UnknownNameError, nearest_names
from vramplan.frameworks.readers import accelerate_launch, python_script
from vramplan.frameworks.registry import FRAMEWORKS, Framework
from vramplan.frameworks.settings import ConfigReader, ConfigSource, ConfigValue, Note, Spelling
from vramplan.frameworks.syntax import shell
from vramplan.frameworks.syntax.config_files import beside, mapping, of_notebook, read_mapping, read_text
from vramplan.frameworks.syntax.python_ast import read_script
from vramplan.inputs.gpu import Gpu

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".txt")
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
WRAPPERS = ("srun", "uv", "uvx", "poetry", "sudo", "docker", "conda", "mpirun", "pipenv", "hatch", "xvfb-run")
PYTHON = re.compile(r"python[\d.]*")
MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed")
"""What ``python -m`` starts as a launcher."""
VALUELESS = {"standalone", "multi_gpu", "use_deepspeed", "use_fsdp"}
OTHERS: dict[tuple[str, ...], str] = {
    ("swift", "rlhf"): "preference and reinforcement training",
    ("trl", "dpo"): "preference training",
    ("trl", "grpo"): "reinforcement training",
}
"""Commands that are known and not read yet."""


class Origin(NamedTuple):
    """The command that settings were read from."""

    command: shell.Command
    own: int
    """How many of its last words are the framework's own."""


class Found(NamedTuple):
    """What is to be checked."""

    name: str
    framework: Framework
    source: ConfigSource
    origin: Origin | None = None
    """None where a file of settings was given."""


def from_path(
    path: Path, asked: str | None, environment: Mapping[str, str] = os.environ, card: Gpu | None = None
) -> Found:
    """A configuration file, or a shell script with a training command; `card` answers what Python asks of it.

    Raises:
        ConfigError: for a file that cannot be read, or holds no training command, or several.
    """
    return from_text(read_text(path), path, asked, environment, card)


def from_text(
    text: str, path: Path, asked: str | None, environment: Mapping[str, str] = os.environ, card: Gpu | None = None
) -> Found:
    """The same of a text that stands, or might stand, in that file.

    Raises:
        ConfigError: for a text that is broken, or holds no training command, or several.
    """
    is_python = path.suffix in (".py", ".ipynb")
    if path.suffix in SCRIPTS or (text.startswith("#!") and not is_python):
        return _from_script(text, path, asked, environment, card)
    if is_python:
        text = of_notebook(text, str(path)) if path.suffix == ".ipynb" else text
        name, settings = python_script.settings_of(read_script(text, str(path), card=card))
        name = asked or name
    else:
        settings = mapping(text, str(path))
        name = asked or _recognised(settings, str(path))
    seen = {key: ConfigValue(environment[key], key) for key in VARIABLES & environment.keys()}
    spelling: Spelling = "python" if is_python else "yaml"
    source = ConfigSource(settings, _exported(settings, seen), (), str(path), spelling=spelling, card=card)
    return Found(name, _framework(name), source)


def from_words(
    words: Sequence[str], asked: str | None, environment: Mapping[str, str] = os.environ, card: Gpu | None = None
) -> Found:
    """A command as it would be typed.

    Raises:
        ConfigError: where it is no training command.
    """
    return from_line(shell.typed(words), asked, environment, card)


def from_line(
    line: str, asked: str | None, environment: Mapping[str, str] = os.environ, card: Gpu | None = None
) -> Found:
    """The same in one line.

    Raises:
        ConfigError: where it is no training command.
    """
    command = next(iter(shell.commands(line, "the command", {})), None)
    found = command and _from_command(command, "the command", Path(), asked, environment, card)
    if not found:
        raise ConfigError(f"{' '.join(line.split()[:3])}: no training command that is known; give --framework")
    return found


def _from_script(text: str, path: Path, asked: str | None, environment: Mapping[str, str], card: Gpu | None) -> Found:
    found = []
    for command in shell.commands(text, str(path), environment):
        one = _from_command(command, f"{path}:{command.line}", path.parent, asked, environment, card)
        if one is not None:
            found.append((command, one))
    if not found:
        raise ConfigError(f"{path}: no training command in it (known: {', '.join(FRAMEWORKS)})")
    if len(found) > 1:
        lines = ", ".join(f"line {command.line} ({' '.join(command.words[:2])})" for command, _ in found)
        raise ConfigError(f"{path}: {len(found)} training commands: {lines}; keep one, or give it behind --")
    return found[0][1]


def _from_command(
    command: shell.Command,
    where: str,
    folder: Path,
    asked: str | None,
    environment: Mapping[str, str],
    card: Gpu | None,
) -> Found | None:
    """The command's framework and settings; None where it trains nothing. Files it names may lie in `folder`."""
    own = _unwrapped(command.words)
    words, told = _unlaunched(own)
    launcher, launched = accelerate_launch.launched(told, folder) if own[:1] == ["accelerate"] else (told, {})
    if tuple(words[:2]) in OTHERS:
        raise ConfigError(f"{where}: {' '.join(words[:2])}: {OTHERS[tuple(words[:2])]} is not read yet")
    name, rest = _claimed(words)
    is_script = name is None and asked is None
    if is_script and not launcher and not (words and words[0].endswith(".py")):
        return None
    spelling: Spelling = "flags"
    framework = FRAMEWORKS["transformers"] if is_script else _framework(asked or name or "")
    own_words = words[1:] if is_script else rest
    loose, settings = framework.split(own_words)
    if is_script and not {"model_name_or_path", "per_device_train_batch_size"} & settings.keys():
        own_settings = _of_program(words[0], folder, settings, card)
        if own_settings is None:
            return None
        (name, settings), spelling = own_settings, "python"
    name = asked or name or "transformers"
    file = next((one for one in loose if one.endswith((".yaml", ".yml", ".json"))), None)
    for key in framework.file_keys:
        if file is None and key in settings and not isinstance(settings[key].value, bool):
            file = str(settings.pop(key).value)
    if file is not None:
        settings, spelling = read_mapping(beside(file, folder) or Path(file)) | settings, "yaml"
    seen = {key: value for key, value in environment.items() if key in VARIABLES} | command.environment
    seen |= {key: str(one.value) for key, one in launched.items()}
    exported, lost = (
        {key: ConfigValue(value, f"{where}: {key}") for key, value in values.items()}
        for values in (seen, command.unexported)
    )
    started_by = () if file else tuple(words[:2])
    source = ConfigSource(launcher | settings, _exported(settings, exported), started_by, where, lost, spelling, card)
    return Found(name, _framework(name), source, Origin(command, len(own_words)))


def _of_program(
    program: str, folder: Path, flags: Mapping[str, ConfigValue], card: Gpu | None
) -> tuple[str, dict[str, ConfigValue]] | None:
    """(framework, settings) of the Python file that a command runs; None where it is not here, or trains nothing."""
    path = beside(program, folder)
    if path is None:
        return None
    script = read_script(read_text(path), str(path), flags, card)
    return python_script.settings_of(script) if python_script.is_training(script) else None


VARIABLES = {
    "CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE", "NNODES", "MAX_PIXELS", "MIN_PIXELS", "IMAGE_MAX_TOKEN_NUM",
    "IMAGE_MIN_TOKEN_NUM", "VIDEO_MAX_PIXELS", "VIDEO_MAX_TOKEN_NUM", "VIDEO_MIN_PIXELS", "VIDEO_MIN_TOKEN_NUM",
    "VIDEO_SEGMENTS", "VIDEO_MAX_NUM", "FPS_MAX_FRAMES", "MAX_NUM", "INPUT_SIZE",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "FORCE_TORCHRUN", "ACCELERATE_MIXED_PRECISION", "MAX_SLICE_NUMS",
    "SWIFT_SINGLE_DEVICE_MODE",
}  # fmt: skip
"""Variables of the environment that change memory."""


def _exported(settings: dict[str, ConfigValue], environment: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
    """The environment, and under it what a configuration exports itself (ENV:, env:), which is no setting then."""
    for key in ("ENV", "env"):
        own = settings.pop(key, None)
        if own is not None and isinstance(own.value, dict):
            inner = {name: ConfigValue(value, f"{own.place}: {name}") for name, value in own.value.items()}
            environment = inner | environment
    return environment


LIKENESS = 0.75
"""difflib's ratio from which a variable's name is taken for another's: MAX_PIXEL, IMAGAE_MAX_PIXELS."""


def tell_lost(keys: ConfigReader) -> None:
    """Variables that do not reach the command, or that nothing reads."""
    for name, found in keys.source.lost.items():
        if name in VARIABLES or _meant(name):
            keys.notes.append(
                Note("warning", name, "is set but not exported: the command does not see it", found.place)
            )
    for name, found in keys.source.environment.items():
        meant = "" if name in VARIABLES else _meant(name)
        if meant:
            keys.notes.append(Note("unknown", name, f"no framework reads this; did you mean {meant}?", found.place))


def _meant(name: str) -> str:
    """The variable that a name looks like a slip for."""
    near = nearest_names(name, VARIABLES, 1)
    return near[0] if near and SequenceMatcher(None, name, near[0]).ratio() > LIKENESS else ""


def _unwrapped(words: list[str]) -> list[str]:
    """The command that srun, uv run and the like start, with all that stands before it left out."""
    if not words or Path(words[0]).name not in WRAPPERS:
        return words
    starts = {command[0] for framework in FRAMEWORKS.values() for command in framework.commands}
    found = (number for number, word in enumerate(words) if Path(word).name in starts or _launches(word))
    return words[next(found, 0) :]


def _launches(word: str) -> bool:
    name = Path(word).name
    return name in LAUNCHERS or PYTHON.fullmatch(name) is not None


def _unlaunched(words: list[str]) -> tuple[list[str], dict[str, ConfigValue]]:
    """(the program and its own words, what its launcher was told)."""
    words, told = list(words), dict[str, ConfigValue]()
    while words and _launches(words[0]):
        launcher = Path(words.pop(0)).name
        if words[:1] == ["launch"]:
            words.pop(0)
        if launcher == "accelerate":
            told.setdefault("num_processes", ConfigValue("all", "accelerate launch"))
        if launcher == "deepspeed":
            told.setdefault("nproc_per_node", ConfigValue("all", "deepspeed"))
        while words and words[0].startswith("-"):
            name, mark, value = words.pop(0).lstrip("-").replace("-", "_").partition("=")
            if name in ("m", "module"):
                break
            if len(name) == 1:  # python's own
                continue
            if not mark and name not in VALUELESS and words:
                value = words.pop(0)
            told[{"num_gpus": "nproc_per_node", "num_nodes": "nnodes"}.get(name, name)] = ConfigValue(
                value, f"--{name}"
            )
        if words and words[0] in MODULES:
            words[0] = "torchrun"
    return words, told


def _claimed(words: list[str]) -> tuple[str | None, list[str]]:
    """The framework whose command this is, and the words behind it."""
    for name, framework in FRAMEWORKS.items():
        for start in framework.commands:
            head = words[: len(start)]
            if len(head) == len(start) and head[1:] == list(start[1:]) and f"/{head[0]}".endswith(f"/{start[0]}"):
                return name, words[len(start) :]
    return None, words


def _recognised(settings: Mapping[str, ConfigValue], where: str) -> str:
    if "distributed_type" in settings or "compute_environment" in settings:
        raise ConfigError(f"{where}: an accelerate configuration names no model; check the command that uses it")
    hits = {name: len(framework.marks & settings.keys()) for name, framework in FRAMEWORKS.items()}
    best = max(hits, key=lambda name: hits[name])
    if not hits[best] and {"output_dir", "per_device_train_batch_size", "model_name_or_path"} & settings.keys():
        return "transformers"
    if not hits[best]:
        raise ConfigError(
            f"{where}: no framework's configuration is recognised; give --framework ({', '.join(FRAMEWORKS)})"
        )
    return best


def _framework(name: str) -> Framework:
    if name not in FRAMEWORKS:
        raise UnknownNameError("framework", name, FRAMEWORKS, f"known: {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]


__all__ = ["Found", "Origin", "from_line", "from_path", "from_text", "from_words", "tell_lost"]
