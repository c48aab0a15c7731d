"""The Python API: names in, results out. The command line is these two functions with a printer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.analytic import estimator
from vramplan.analytic.architectures.lookup import architecture_of, is_described
from vramplan.errors import ConfigError, UnknownNameError, UnsupportedError
from vramplan.inputs import hub, nvml
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import MAX_COUNT, Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.calibration import CONFIDENCE, with_margin
from vramplan.memory.estimate import Estimate
from vramplan.memory.optimizers import optimizer_of
from vramplan.planner import suggest as plan
from vramplan.planner.estimate_cache import Estimator
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.levers import memory_levers
from vramplan.progress import Progress, silent


def load_model(name: str | ModelSpec) -> ModelSpec:
    """A model by shipped name, folder, config.json or Hub id; one that is loaded is itself.

    Raises:
        VramplanError: when there is none.
    """
    return name if isinstance(name, ModelSpec) else hub.resolve_model(name)


def load_gpu(name: str | Gpu) -> Gpu:
    """A card by name; "auto" is the one in this box; one that is loaded is itself.

    Raises:
        VramplanError: when there is none.
    """
    if isinstance(name, Gpu):
        return name
    return nvml.local_gpu() if name.lower() == "auto" else find_gpu(name)


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
    """What a job needs; keyword arguments are the fields of :class:`vramplan.Job`.

    `by` is analytic or trace; None is analytic, or trace where no block describes the model. `progress` is
    told what a trace is doing, and the share that is done. `confidence` sets the safety margin of the verdict; 0 is
    none.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    if by not in (None, "analytic", "trace"):
        raise UnknownNameError("estimator", str(by), ("analytic", "trace"), "known: analytic, trace")
    spec, card = _resolve(model, gpu, confidence)
    full = complete_job(spec, card, job)
    if by == "trace" or (by is None and _needs_trace(spec)):
        from vramplan.torch_backend import tracing

        progress("loading torch, transformers and peft", 0.0)
        trace = tracing()
        found: Estimate = trace.estimate(spec, trace.settle(spec, full), card, progress, trust_remote_code)
        return found
    return estimator.estimate(spec, full, card)


def suggest(
    model: str | ModelSpec,
    gpu: str | Gpu,
    global_batch: int,
    *,
    samples: int | None = None,
    epochs: float = 1.0,
    base_lr: float | None = None,
    base_batch: int | None = None,
    advice: bool = True,
    progress: Progress = silent,
    trust_remote_code: bool = False,
    confidence: float = CONFIDENCE,
    **job: Any,
) -> plan.Search:
    """The (micro-batch, accumulation) pairs that meet a global batch; keyword arguments are fields of :class:`Job`.

    A model that no block describes is traced at a few micro-batches, which takes seconds: `progress` is told.
    `confidence` sets the safety margin that plans leave free; 0 is none.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    for flag, number in (("--global-batch", global_batch), ("--samples", samples), ("--base-batch", base_batch)):
        whole = isinstance(number, int) and not isinstance(number, bool)
        if number is not None and not (whole and 0 < number <= MAX_COUNT):
            raise ConfigError(f"{flag} {number}: expected a whole number from 1 to {MAX_COUNT}")
    for flag, value in (("--epochs", epochs), ("--base-lr", base_lr)):
        if value is not None and not 0 < value < 1e9:
            raise ConfigError(f"{flag} {value:g}: expected a positive number")
    if (base_lr is None) != (base_batch is None):
        raise ConfigError("--base-lr and --base-batch go together: the rate and the batch it was tuned for")
    for name in ("micro_batch_size", "gradient_accumulation_steps"):
        if job.get(name) is not None:
            raise ConfigError(f"{name} is what suggest looks for; give it to estimate instead")
    spec, card = _resolve(model, gpu, confidence)
    full = complete_job(spec, card, job)
    run = plan.Run(samples, epochs, base_lr, base_batch, optimizer_of(full.optimizer).adaptive)
    begin, settle, described = source(spec, progress, trust_remote_code)
    advised = (
        memory_levers if advice and described else None
    )  # where it is traced, advice would be traces for each lever
    return plan.search(spec, settle(spec, full), card, global_batch, begin, run, advised)


def source(
    spec: ModelSpec, progress: Progress = silent, trust_remote_code: bool = False
) -> tuple[Estimator, Callable[[ModelSpec, Job], Job], bool]:
    """Where estimates of a model come from at any batch, how a job is settled for it, and whether a block describes it.

    Raises:
        UnsupportedError: where none does, and the libraries to trace it are not there.
    """
    if not _needs_trace(spec):
        return estimator.begin, lambda _, job: job, True
    from vramplan.torch_backend import tracing

    progress("loading torch, transformers and peft", 0.0)
    trace = tracing()
    return trace.Law(progress, trust_remote_code).begin, trace.settle, False


def _needs_trace(spec: ModelSpec) -> bool:
    """Whether no block describes the model, and the libraries to trace it are there.

    Raises:
        UnsupportedError: where they are not.
    """
    if is_described(spec):
        return False
    from vramplan.torch_backend import INSTALL, is_installed

    if not is_installed():
        try:
            architecture_of(spec)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"{str(error).partition('; the real')[0]}; the real model can be traced with {INSTALL}"
            ) from (error)
    return True


def _resolve(model: str | ModelSpec, gpu: str | Gpu, confidence: float) -> tuple[ModelSpec, Gpu]:
    card = with_margin(load_gpu(gpu), confidence)  # a typo there needs no network
    return load_model(model), card
