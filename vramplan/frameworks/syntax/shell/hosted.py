"""A script's text that a command passes to another shell: ``bash -c``, ``srun bash -c``, ``ssh HOST``, ``sbatch``."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

from vramplan.frameworks.syntax.shell.tree import UNKNOWN

SHELLS = ("bash", "sh", "dash", "zsh")
LAUNCHERS = ("srun", "mpirun", "mpiexec")
"""Programs that start a command as several processes, by their flags."""
INHERITING = (
    *LAUNCHERS,
    "singularity",
    "apptainer",
    "uv",
    "conda",
    "mamba",
    "micromamba",
    "poetry",
    "pixi",
    "xvfb-run",
    "ray",
    "screen",
    "tmux",
)
"""Programs that start a command with the environment that they have."""
OTHERS = ("docker", "podman", "nvidia-docker", "kubectl", "enroot")
"""Programs that start a command with an environment of its own."""
_TMUX = ("new", "new-session", "send", "send-keys", "neww", "new-window")
"""tmux's commands that are given a line for a shell."""
_VALUED = "bcDEeFIiJLlmOopQRSWw"
"""ssh's flags with a value (OpenSSH 9: ssh(1))."""
_COMMAND = re.compile(r"-[a-z]*c")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)


_NESTED = r"(?:[^()\s]|\((?:[^()\s]|\((?:[^()\s]|\([^()\s]*\))*\))*\))*"
_UNKNOWN_PART = re.compile(
    rf"{UNKNOWN}(?:\$\({_NESTED}\)|\$\(\S*?\.\.\.|\$\{{[^}}\s]*\}}|\$\w+|[^\s\"';&|<>()]*)", re.ASCII
)
"""A part that is not known, with the expansion that it comes from (state.py: unknown)."""


class Hosted(NamedTuple):
    """What another shell runs."""

    text: str
    first: int
    """The index of the word at which the shell stands."""
    arguments: tuple[str, ...] = ()
    inherits: bool = True
    """Whether it sees what is exported."""
    launches: bool = False
    """Whether the words before it tell how many processes run."""
    assigned: dict[str, str] = {}  # noqa: RUF012 (never changed)


def hosted_text(words: list[str], stdin: str | None) -> Hosted | None:
    """The text that a command's shell runs; `stdin` is the command's input."""
    name = PurePosixPath(words[0]).name
    if name in SHELLS:
        return _of_shell(words, 0, stdin)
    if name == "ssh":
        return _of_ssh(words)
    if name == "sbatch":
        return _of_sbatch(words, stdin)
    if name not in INHERITING and name not in OTHERS:
        return None
    if name == "tmux" and words[1:2] and words[1] in _TMUX:
        return next((Hosted(word, 0) for word in words[2:] if " " in word), None)
    place = next((place for place in range(1, len(words)) if PurePosixPath(words[place]).name in SHELLS), 0)
    hosted = _of_shell(words, place, None) if place else None
    if hosted is None:
        return None
    assigned = _assigned(words[1:place], name)
    return hosted._replace(inherits=name in INHERITING, launches=name in LAUNCHERS, assigned=assigned)


def with_parameters(text: str) -> tuple[str, dict[str, str]]:
    """(a text with a parameter for each of its parts that are not known, the parameters' values).

    What is not known is presumed to hold no quotes and no operators.
    """
    values: dict[str, str] = {}

    def named(match: re.Match[str]) -> str:
        name = f"vramplan_unknown_{len(values)}"
        values[name] = match[0]
        return f"${{{name}}}"

    return _UNKNOWN_PART.sub(named, text), values


def _of_shell(words: list[str], first: int, stdin: str | None) -> Hosted | None:
    for place in range(first + 1, len(words) - 1):
        if not words[place].startswith("-"):
            break
        if _COMMAND.fullmatch(words[place]):
            return Hosted(words[place + 1], first, tuple(words[place + 3 :]))
    if stdin is not None and all(word == "-s" for word in words[first + 1 :]):
        return Hosted(stdin, first)
    return None


def _of_ssh(words: list[str]) -> Hosted | None:
    """The words behind the host, which the shell there reads as one text."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if len(words[at]) == 2 and words[at][1] in _VALUED else 1
    return Hosted(" ".join(words[at + 1 :]), 0, inherits=False) if at + 1 < len(words) else None


def _of_sbatch(words: list[str], stdin: str | None) -> Hosted | None:
    """``--wrap TEXT``, or a batch script as its input."""
    for place, word in enumerate(words[1:], 1):
        if word.startswith("--wrap="):
            return Hosted(word.partition("=")[2], 0)
        if word == "--wrap" and place + 1 < len(words):
            return Hosted(words[place + 1], 0)
    is_input = stdin is not None and all(word.startswith("-") for word in words[1:])
    return Hosted(stdin or "", 0) if is_input else None


def _assigned(words: list[str], name: str) -> dict[str, str]:
    """Variables that a container's or srun's flags set."""
    pairs: list[str] = []
    for place, word in enumerate(words):
        flag, mark, value = word.partition("=")
        if name == "srun" and flag == "--export" and mark:
            pairs += value.split(",")
        elif flag in ("-e", "--env"):
            pairs += [value] if mark else words[place + 1 : place + 2]
    return {match[1]: match[2] for pair in pairs if (match := _ASSIGNED.fullmatch(pair)) is not None}


__all__ = ["Hosted", "hosted_text"]
