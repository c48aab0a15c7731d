"""The optional libraries: whether they are there, and which versions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from vramplan.errors import MissingDependencyError

NEEDED = ("torch", "transformers", "peft", "accelerate")
INSTALL = 'pip install "vramplan[probe]"'


def versions() -> str:
    """What is installed, for people.

    Raises:
        MissingDependencyError: where something is missing; names the install command.
    """
    found = []
    for name in NEEDED:
        try:
            found.append(f"{name} {version(name).partition('+')[0]}")
        except PackageNotFoundError as error:
            raise MissingDependencyError(
                f"running the real model needs {name}, which is not installed: {INSTALL}"
            ) from error
    return ", ".join(found)


def is_installed() -> bool:
    """Whether all of it is there."""
    try:
        versions()
    except MissingDependencyError:
        return False
    return True
