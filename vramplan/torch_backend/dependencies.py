"""The optional libraries: whether they are there, and which versions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from vramplan.errors import MissingDependencyError, UnsupportedError
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.validation import are_linear

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


def check_experts(spec: ModelSpec, job: Job) -> None:
    """Refuse linear experts where the installed transformers makes no more of them.

    Raises:
        UnsupportedError: for that.
    """
    have = version("transformers")
    if are_linear(spec, job) and int(have.partition(".")[0]) >= 5:
        raise UnsupportedError(
            f"{spec.name}: experts of linear layers are those of transformers before 5, and {have} is installed;"
            " --by analytic describes them"
        )
