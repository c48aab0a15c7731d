"""The teacher that a job names."""

from __future__ import annotations

from vramplan.inputs.job import Job
from vramplan.inputs.load import load_other_model
from vramplan.inputs.model_spec import ModelSpec


def teacher_of(job: Job) -> ModelSpec | None:
    """The job's teacher; None for a job without one.

    Raises:
        VramplanError: if there is no such model.
    """
    return None if job.teacher is None else load_other_model("teacher", job.teacher)
