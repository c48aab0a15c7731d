"""The teacher that a job names."""

from __future__ import annotations

from vramplan.errors import ConfigError, setting
from vramplan.inputs.job import Job
from vramplan.inputs.load import load_other_model
from vramplan.inputs.model_spec import ModelSpec


def teacher_name(given: object) -> str:
    """The name by which a job keeps the teacher that was given: a name, or a loaded model that has one.

    Raises:
        VramplanError: if there is no such model, or a loaded one is not what its name stands for.
    """
    name = given.name if isinstance(given, ModelSpec) else str(given)
    spec = load_other_model("teacher", name)
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
    return None if job.teacher is None else load_other_model("teacher", job.teacher)
