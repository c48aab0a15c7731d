"""What one job needs of a GPU, by the analytic estimator or by a trace of the real model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.analytic import estimator
from vramplan.analytic.architectures.lookup import architecture_of, is_described
from vramplan.errors import UnknownNameError, UnsupportedError
from vramplan.inputs.batch_rules import check_batch
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.nearest_models import refusal
from vramplan.inputs.usual_names import accepts_usual_names
from vramplan.memory.calibration import CONFIDENCE
from vramplan.memory.estimate import Estimate
from vramplan.planner.estimate_cache import Estimator
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.load import load_both
from vramplan.progress import Progress, silent

ESTIMATORS = ("analytic", "trace")


@accepts_usual_names
def estimate(
    model: str | ModelSpec,
    gpu: str | Gpu,
    *,
    by: str | None = None,
    progress: Progress = silent,
    trust_remote_code: bool = False,
    confidence: float = CONFIDENCE,
    **job: Any,
) -> Estimate:
    """The memory that one job needs of a GPU; keyword arguments are the fields of :class:`vramplan.Job`.

    Args:
        model: A shipped name, a Hub id, a folder, a config.json, or a loaded model.
        gpu: A name from the catalogue, "auto" for the GPU in this machine, or a loaded one.
        by: "analytic" or "trace"; None is analytic if it supports the architecture, else trace.
        progress: Called with what a trace does, and the share that is done.
        trust_remote_code: Whether a trace may run code that comes with the model.
        confidence: How sure the verdict "fits" is to be, which sets the safety margin; 0 for none.
        **job: Fields of :class:`vramplan.Job`.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    if by not in (None, *ESTIMATORS):
        raise UnknownNameError("estimator", str(by), ESTIMATORS, f"known: {', '.join(ESTIMATORS)}")
    spec, gpu = load_both(model, gpu, confidence)
    full_job = complete_job(spec, gpu, job)
    check_batch(full_job)
    if by == "trace" or (by is None and _needs_trace(spec, trust_remote_code)):
        from vramplan.torch_backend import tracing

        progress("loading torch, transformers and peft", 0.0)
        trace = tracing()
        traced: Estimate = trace.estimate(spec, trace.settle(spec, full_job), gpu, progress, trust_remote_code)
        return traced
    return estimator.SHARED(spec, full_job, gpu).complete()


def estimator_for(
    spec: ModelSpec, progress: Progress = silent, trust_remote_code: bool = False
) -> tuple[Estimator, Callable[[ModelSpec, Job], Job], bool]:
    """What estimates a model at any batch: (estimator, what completes a job for it, whether it is the analytic one).

    Raises:
        UnsupportedError: if the analytic estimator does not support the model, and torch is not installed to trace it.
    """
    if not _needs_trace(spec, trust_remote_code):
        return estimator.SHARED, lambda _, job: job, True
    from vramplan.torch_backend import tracing

    progress("loading torch, transformers and peft", 0.0)
    trace = tracing()
    return trace.TracedModel(progress, trust_remote_code).begin, trace.settle, False


def _needs_trace(spec: ModelSpec, trust_remote_code: bool) -> bool:
    """Whether only a trace can estimate the model.

    Raises:
        UnsupportedError: if so, and the libraries to trace it are not installed, or a trace cannot run it either.
    """
    if is_described(spec):
        return False
    refused = refusal(spec, trust_remote_code)
    if refused:
        raise UnsupportedError(refused)
    from vramplan.torch_backend import INSTALL, is_installed

    if not is_installed():
        try:
            architecture_of(spec)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"{error.text.rpartition('; ')[0]}; the real model can be traced with {INSTALL}"
            ) from (error)
    return True
