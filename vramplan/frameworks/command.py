"""A training command: its framework, and its settings by its flags, its file and its launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vramplan.errors import ConfigError, UnknownNameError, UnsupportedError, VramplanError
from vramplan.frameworks import launchers
from vramplan.frameworks.detected_config import DetectedConfig, Origin
from vramplan.frameworks.environment import with_exports
from vramplan.frameworks.framework import Program
from vramplan.frameworks.known_keys import known_keys
from vramplan.frameworks.program_files import program_file, written_text
from vramplan.frameworks.readers import python_script
from vramplan.frameworks.recognize import (
    TRAINER_KEYS,
    nearest_task,
    refuse_other_tasks,
    refuse_task_named,
    refuse_unread_budget,
    refuse_unread_program,
)
from vramplan.frameworks.registry import DEFAULT, FRAMEWORKS, Framework, environment_variables
from vramplan.frameworks.settings import ConfigSource, ConfigValue, Note, Spelling
from vramplan.frameworks.syntax import shell
from vramplan.frameworks.syntax.config_files import mapping, read_mapping
from vramplan.frameworks.syntax.lookup import beside
from vramplan.frameworks.syntax.python_ast import Script
from vramplan.frameworks.unread import OTHER_PURPOSES
from vramplan.inputs.gpu import Gpu

MARKED = 1000
"""What a script's own flags weigh against the length of its path."""

TRL = "trl"
"""The framework whose scripts have the names of what they do: sft.py, dpo.py."""
MODULE_FLAGS = {"-m", "--module"}
"""Flags of launchers behind which a module stands in a script's place."""
LEARNS = frozenset(
    {
        "num_train_epochs", "learning_rate", "deepspeed", "gradient_accumulation_steps", "max_steps", "fsdp",
        "gradient_checkpointing", "optim", "block_size", "do_train", "use_lora", "use_peft", "lora_r", "lora_rank",
    }
)  # fmt: skip
"""Flags of transformers' Trainer, and of scripts around it, that only training has."""


def from_command(
    command: shell.Command,
    where: str,
    folder: Path,
    framework: str | None,
    environment: Mapping[str, str],
    gpu: Gpu | None,
    files: Mapping[str, str | None] | None = None,
) -> DetectedConfig | None:
    """The command's framework and settings; None if it trains nothing. Files that it names may lie in `folder`.

    `files` are texts of files that a notebook writes, by name, before those of this machine.
    """
    starts = {words[0] for record in FRAMEWORKS.values() for words in record.commands}
    variables, notes = {**environment, **command.environment}, list[Note]()
    try:
        words, launcher, launched = launchers.launch(command.words, folder, variables, starts, notes)
    except (ConfigError, UnsupportedError) as error:
        raise (error if not str(error).startswith("--") else type(error)(f"{where}: {error}")) from None
    if not words:
        return None
    for other in FRAMEWORKS.values():
        start = tuple(words[:2])
        if start in other.unread_commands:
            raise UnsupportedError(f"{where}: {' '.join(start)}: {other.unread_commands[start]} is not read yet")
    program, name, rest = _match_command(words, folder)
    is_by_name = name in (None, TRL) or program is None  # by the name of a file that many have
    if is_by_name and MODULE_FLAGS & set(command.words) and beside(_as_path(words[0]), folder) is not None:
        words = [_as_path(words[0]), *words[1:]]
        rest = words if name is None else rest
    if name is None:
        refuse_unread_program(words, where)
    if name is not None and framework is None:
        own = _own_script(words, folder, gpu, variables, files or {}, program, name, notes)
        if own is not None:
            program, name, rest = None, None, words
    if program is not None and program.unread and framework is None:
        nearest = nearest_task(program.unread, words)
        raise ConfigError(
            f"{where}: {words[0]}: {program.unread} is not read yet; read is supervised fine-tuning{nearest}"
        )
    is_script = name is None and framework is None
    if is_script and not launcher and not (words and words[0].endswith(".py")):
        refuse_unread_budget(words, where)
        return None
    spelling: Spelling = "flags"
    record = DEFAULT if is_script else find_framework(framework or name or "")
    framework_words = words[1:] if is_script else rest
    try:
        loose, settings = record.split(framework_words)
    except ConfigError:
        if is_script:  # of a program that says more than its words
            refuse_unread_budget(words, where)
        raise
    if record.overrides == "hydra":
        spelling = "pairs"
    script: Script | None = None
    if is_script:
        own_file = program_file(words[0], folder, files or {})
        script = None if own_file is None else own_file.script(settings, gpu, variables, words[1:])
        if script is not None:
            name, settings = python_script.settings_of(script)
            spelling = "python"
        elif not _trains(words[0], settings):
            refuse_unread_budget(words, where)
            return None
        else:
            refuse_other_tasks(settings, where)
            refuse_task_named(words[0])
    name = framework or name or DEFAULT.name
    file = next((word for word in loose if word.endswith((".yaml", ".yml", ".json"))), None)
    if script is not None:  # which reads its files itself
        file = None
    for key in record.file_keys if script is None else ():
        if file is None and key in settings and not isinstance(settings[key].value, bool):
            file = str(settings.pop(key).value)
    if file is not None:
        text = written_text(file, files or {})
        pairs = read_mapping(_named(file, folder, where)) if text is None else mapping(text, file)
        settings, spelling = pairs | settings, "yaml"
    names = environment_variables() - command.removed
    variables = {key: value for key, value in environment.items() if key in names}
    variables |= command.environment | {key: str(value.value) for key, value in launched.items()}
    exported, unexported = (
        {key: ConfigValue(value, f"{where}: {key}") for key, value in values.items()}
        for values in (variables, command.unexported)
    )
    started_by = () if file else tuple(words[:2])
    exported = with_exports(settings, exported)
    source = ConfigSource(
        launcher | settings,
        exported,
        started_by,
        where,
        unexported,
        spelling,
        gpu,
        notes=(*notes, *(() if script is None else python_script.notes_of(script))),
        way="" if script is None else python_script.way_of(script),
        program=_program(words, record),
    )
    return DetectedConfig(find_framework(name), source, Origin(command, len(framework_words)))


def _has_other_flags(words: Sequence[str], name: str) -> bool:
    """Whether a command has flags that the framework's program does not know."""
    record = FRAMEWORKS[name]
    _, flags = record.split(words[1:])
    return not flags.keys() <= known_keys(name, record.inherits)


def _own_script(
    words: Sequence[str],
    folder: Path,
    gpu: Gpu | None,
    environment: Mapping[str, str],
    files: Mapping[str, str | None],
    program: Program | None,
    name: str,
    notes: list[Note],
) -> Script | None:
    """The user's script that is here and has the name of a known one; None if it is that one, or is not here.

    TRL's scripts have names that many give their own, and are told by their text.

    Raises:
        ConfigError: if a script of such a name is no Python, or its flags are not known.
    """
    if name != TRL:
        has_other_flags = program is None or _has_other_flags(words, name)
        if program is not None and "/" in program.path and not has_other_flags:
            return None
        with suppress(VramplanError):  # it says more than its name, which several projects have
            file = program_file(words[0], folder, files)
            flags = DEFAULT.split(words[1:])[1]
            script = None if file is None else file.script(flags, gpu, environment, words[1:])
            if script is not None and has_other_flags and script.has_argparse:
                return script
            return script if script is not None and program is not None and python_script.settings_of(script) else None
        return None
    file = program_file(words[0], folder, files)
    if file is None:
        return None
    if file.is_of_trl:
        notes.append(Note("warning", "", f"{words[0]} is taken for TRL's own script; changes to it are not read"))
        return None
    script = file.script(DEFAULT.split(words[1:])[1], gpu, environment, words[1:])
    if script is None:
        notes.append(Note("doubt", "", f"what {words[0]} trains with, which is not TRL's own script"))
    return script


def _trains(program: str, settings: Mapping[str, ConfigValue]) -> bool:
    """Whether a program that is not here trains, by its flags and name: others load a model, or write a folder, too."""
    keys = TRAINER_KEYS & settings.keys()
    if "per_device_train_batch_size" in keys or (keys and LEARNS & settings.keys()):
        return True
    return "model_name_or_path" in keys and OTHER_PURPOSES.search(Path(program).name) is None


def _named(file: str, folder: Path, where: str) -> Path:
    """The configuration that a command names.

    Raises:
        ConfigError: if it is not here.
    """
    path = beside(file, folder)
    if path is not None:
        return path
    if shell.UNKNOWN in file:
        name = file.replace(shell.UNKNOWN, "")
        raise ConfigError(f"{where}: {name}: which file this is is not known without a run; check the file itself")
    raise ConfigError(
        f"{where}: no file {file} here, beside the script or in a folder above it; check the file itself, or write the"
        " path that it has here"
    )


def _match_command(words: list[str], folder: Path) -> tuple[Program | None, str | None, list[str]]:
    """(the script in `programs`, the framework whose command this is, the words after the command).

    A script whose marks are set goes before one without marks, then the one of which more of the path is known.
    """
    matches: list[tuple[int, Program | None, str, int]] = []
    for name, framework in FRAMEWORKS.items():
        for start in framework.commands:
            head = words[: len(start)]
            if not head or head[1:] != list(start[1:]) or len(head) != len(start):
                continue
            first = _as_path(head[0]) if start[0].endswith(".py") else head[0]
            if f"/{first}".endswith(f"/{start[0]}"):
                matches.append((len(" ".join(start)), None, name, len(start)))
    path = _as_path(words[0]) if words else ""
    candidates = [
        (program, name)
        for name, framework in FRAMEWORKS.items()
        for program in framework.programs
        if f"/{path}".endswith(f"/{program.path}")
    ]
    has_marks = any(program.marks or program.required for program, _ in candidates)
    keys = _keys_of(words[1:], folder) if has_marks else set[str]()
    for program, name in candidates:
        if program.required <= keys and (not program.marks or program.marks & keys):
            matches.append((len(program.path) + (MARKED if program.marks else 0), program, name, 1))
    if not matches:
        return None, None, words
    _, program_or_none, name, length = max(matches, key=lambda match: match[0])
    return program_or_none, name, words[length:]


def _keys_of(words: Sequence[str], folder: Path) -> set[str]:
    """A command's flags, and the keys of the YAML file that it names."""
    keys = {word.lstrip("-").partition("=")[0].replace("-", "_") for word in words if word.startswith("-")}
    file = next((word.rpartition("=")[2] for word in words if word.endswith((".yaml", ".yml", ".json"))), None)
    path = beside(file, folder) if file is not None and not {"deepspeed", "fsdp_config"} & keys else None
    return keys if path is None else keys | read_mapping(path).keys()


def _program(words: Sequence[str], record: Framework) -> str:
    """What a command runs: a script's path, or the words of a framework's command."""
    start = tuple(words[:2])
    return " ".join(start) if len(start) == 2 and start in record.commands else _as_path(words[0]) if words else ""


def _as_path(word: str) -> str:
    """A program's path; for a module that ``python -m`` runs, its path in the checkout."""
    return word if word.endswith(".py") else f"{word.replace('.', '/')}.py"


def find_framework(name: str) -> Framework:
    """A framework by its package's name.

    Raises:
        UnknownNameError: if there is none.
    """
    if name not in FRAMEWORKS:
        raise UnknownNameError("framework", name, FRAMEWORKS, f"known: {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]
