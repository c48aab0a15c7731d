"""The parts that the site ships beside this package: one version of each, known by its SHA-256.

They come from the indexes that the user's own pip and npm are set up for, or from a folder of files.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from vramplan.bounded_read import read_bytes
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError

MAX_PART_BYTES = 64 << 20
SECONDS_TO_DOWNLOAD = 600
WHEELS_FOR = ("--python-version", "3.14", "--implementation", "cp", "--abi", "cp314", "--abi", "none")
"""Python in Pyodide 314 (its pyodide-lock.json: python 3.14.2, abi_version 2026_0)."""
PLATFORMS = ("--platform", "pyemscripten_2026_0_wasm32", "--platform", "any")


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a registry."""

    name: str
    version: str
    file: str
    sha256: str
    licence: str


def parts() -> tuple[Part, tuple[Part, ...]]:
    """(Pyodide, as npm's archive; the wheels)."""
    known = json.loads(Path(__file__).with_name("parts.json").read_text(encoding="utf-8"))
    (pyodide,) = (Part(**part) for part in known["npm"])
    return pyodide, tuple(Part(**part) for part in known["pypi"])


def contents(folder: Path) -> dict[str, bytes]:
    """The content of each part by its file's name, from a folder.

    Raises:
        ConfigError: if a file is missing, or is not the one that is known.
    """
    pyodide, wheels = parts()
    return {part.file: _checked(part, folder / part.file) for part in (pyodide, *wheels)}


def _checked(part: Part, path: Path) -> bytes:
    content = read_bytes(path, MAX_PART_BYTES)
    if sha256(content).hexdigest() != part.sha256:
        raise ConfigError(f"{path}: is not {part.name} {part.version} (its SHA-256 differs); remove it and try again")
    return content


def download(folder: Path) -> None:
    """Put all parts into a folder, by npm and pip.

    Raises:
        ConfigError: if one of these programs is missing or fails, as it does without a network.
    """
    pyodide, wheels = parts()
    _call(["npm", "pack", "--silent", f"{pyodide.name}@{pyodide.version}"], folder)
    names = [f"{part.name}=={part.version}" for part in wheels]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    _call([*pip, "--only-binary", ":all:", *WHEELS_FOR, *PLATFORMS, "--dest", ".", *names], folder)


def _call(command: Sequence[str], folder: Path) -> None:
    program = "pip" if "pip" in command else command[0]
    instead = "; download the files of vramplan/site/parts.json elsewhere, and name their folder by --parts"
    try:
        run = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=SECONDS_TO_DOWNLOAD, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise ConfigError(f"{program} is not installed, which downloads a part of the site{instead}") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{program} took more than {SECONDS_TO_DOWNLOAD} s{instead}") from None
    if run.returncode:
        reasons = [line.strip() for line in run.stderr.splitlines() if "error" in line.lower()]
        raise ConfigError(f"{program} cannot download a part of the site ({' '.join(reasons[-1:])}){instead}")
