"""The teacher that a job names."""

from __future__ import annotations

from functools import lru_cache

from vramplan.errors import ConfigError, VramplanError, setting
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import IMPORT_PATH, ModelSpec
from vramplan.inputs.resolve import resolve_model


def teacher_name(given: object) -> str:
    """The name by which a job keeps the teacher that was given: a name, or a loaded model that has one.

    Raises:
        VramplanError: if there is no such model, or a loaded one is not what its name stands for.
    """
    name = given.name if isinstance(given, ModelSpec) else str(given)
    spec = teacher_called(name)
    if isinstance(given, ModelSpec) and given != spec:
        raise ConfigError(
            f"{setting('teacher', name)}: the loaded model is not the one of this name; give a folder or a config.json"
        )
    return spec.name


def teacher_of(job: Job) -> ModelSpec | None:
    """The job's teacher; None for a job without one.

    Raises:
        VramplanError: if there is no such model.
    """
    return None if job.teacher is None else teacher_called(job.teacher)


@lru_cache(maxsize=16)
def teacher_called(name: str) -> ModelSpec:
    """The model of this name.

    Raises:
        VramplanError: if there is no such model.
    """
    try:
        spec = resolve_model(name, typed=True)
    except VramplanError as error:
        raise ConfigError(f"{setting('teacher', name)}: {error.text}") from error
    if spec.model_type == IMPORT_PATH:
        raise ConfigError(f"{setting('teacher', name)}: give a Hub id (org/name), a folder or a config.json")
    return spec
