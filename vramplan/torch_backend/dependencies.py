"""The libraries of the extra ``vramplan[probe]``: whether they are installed, and which versions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from vramplan.errors import MissingDependencyError, UnsupportedError, setting
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.validation import are_linear

NEEDED = ("torch", "transformers", "peft", "accelerate")
INSTALL = 'pip install "vramplan[probe]"'


def versions() -> str:
    """Names and versions of the installed libraries: "torch 2.13.0, transformers 5.23.0, ...".

    Raises:
        MissingDependencyError: if one is missing; names the install command.
    """
    versions = []
    for name in NEEDED:
        try:
            versions.append(f"{name} {version(name).partition('+')[0]}")
        except PackageNotFoundError as error:
            raise MissingDependencyError(
                f"running the real model needs {name}, which is not installed: {INSTALL}"
            ) from error
    return ", ".join(versions)


def is_installed() -> bool:
    """Whether all libraries are installed."""
    try:
        versions()
    except MissingDependencyError:
        return False
    return True


def check_experts(spec: ModelSpec, job: Job) -> None:
    """Refuse experts as separate linear layers: transformers 5 and later has no such layers.

    Raises:
        UnsupportedError: if such a transformers is installed.
    """
    installed = version("transformers")
    if are_linear(spec, job) and int(installed.partition(".")[0]) >= 5:
        raise UnsupportedError(
            f"{spec.name}: experts of linear layers are those of transformers before 5, and {installed} is"
            f" installed; {setting('by', 'analytic')} supports them"
        )
