"""Which batch: the (micro-batch, accumulation) pairs that meet a global batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vramplan.analytic.unfolded_step import no_cycle_collection
from vramplan.errors import ConfigError, name_settings
from vramplan.inputs.former_names import with_current_names
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.usual_names import accepts_usual_names
from vramplan.memory.calibration import CONFIDENCE
from vramplan.memory.optimizers import modelled
from vramplan.planner import batch_search
from vramplan.planner.estimate import estimator_for
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.levers import Levers, memory_levers
from vramplan.planner.load import load_both
from vramplan.planner.preference import check_preference
from vramplan.planner.search_result import Run, Search
from vramplan.planner.training_run import check_length, check_numbers
from vramplan.progress import Progress, silent


@accepts_usual_names
@no_cycle_collection()
def suggest(
    model: str | ModelSpec,
    gpu: str | Gpu,
    global_batch: int,
    *,
    solve: str | None = None,
    samples: int | None = None,
    epochs: float = 1.0,
    tokens_total: int | None = None,
    warmup_ratio: float | None = None,
    base_lr: float | None = None,
    base_batch: int | None = None,
    advice: bool | Levers = True,
    prefer: str = "largest",
    progress: Progress = silent,
    trust_remote_code: bool = False,
    confidence: float = CONFIDENCE,
    **job: Any,
) -> Search:
    """The (micro-batch, accumulation) pairs that meet a global batch; keyword arguments are fields of :class:`Job`.

    Args:
        model: A shipped name, a Hub id, a folder, a config.json, or a loaded model.
        gpu: A name from the catalogue, "auto" for the GPU in this machine, or a loaded one.
        global_batch: Samples of one optimizer step.
        solve: The setting to find the largest fitting value of first: "image-size", "max-pixels", "max-tiles",
            "seq-len" or "vllm-share"; see :func:`vramplan.planner.images.solve`.
        samples: Samples of the data set, for the number of steps of the run.
        epochs: Passes over the data set.
        tokens_total: Tokens of the whole run, instead of samples.
        warmup_ratio: Share of the optimizer steps that warm up, for their number.
        base_lr: A learning rate that is known to work at `base_batch`, to be scaled.
        base_batch: The global batch that `base_lr` was tuned for.
        advice: Whether to look for changes that would help, or what lists those to try.
        prefer: Which plan is recommended: "largest" (micro-batch), "fastest" or "headroom" (most memory free).
        progress: Called with what is being done, and the share that is done.
        trust_remote_code: Whether a trace may run code that comes with the model.
        confidence: How sure the verdict "fits" is to be, which sets the safety margin; 0 for none.
        **job: Fields of :class:`vramplan.Job`.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    check_numbers(
        {"global_batch": global_batch, "samples": samples, "base_batch": base_batch},
        {"epochs": epochs, "base_lr": base_lr},
    )
    if (base_lr is None) != (base_batch is None):
        raise ConfigError(
            name_settings("{base_lr} and {base_batch} go together: the rate and the batch that it was tuned for")
        )
    check_length(samples, tokens_total, warmup_ratio)
    for name in ("micro_batch_size", "gradient_accumulation_steps"):
        if job.get(name) is not None:
            raise ConfigError(f"{name} is what suggest searches for; give it to estimate instead")
    check_preference(prefer)
    solved = None
    if solve is not None:
        from vramplan.planner import images

        settings = with_current_names(job)
        num_copies = 1 if settings.get("strategy") == "device_map" else settings.get("num_gpus") or 1
        steps = max(1, global_batch // num_copies)  # the smallest micro-batch leaves most room
        solved = images.solve(
            model, gpu, solve, progress=progress, confidence=confidence, gradient_accumulation_steps=steps, **job
        )
        job = {name: value for name, value in solved.job.items() if name != "gradient_accumulation_steps"}
    spec, gpu = load_both(model, gpu, confidence)
    full_job = complete_job(spec, gpu, job)
    optimizer = modelled(full_job.optimizer)
    run = Run(
        samples=samples,
        epochs=epochs,
        tokens_total=tokens_total,
        warmup_ratio=warmup_ratio,
        base_lr=base_lr,
        base_batch=base_batch,
        adaptive=optimizer is None or optimizer.adaptive,
    )
    estimator, complete, is_analytic = estimator_for(spec, progress, trust_remote_code)
    listed = memory_levers if advice is True else advice or None
    levers = listed if is_analytic else None  # a traced model would be traced again for each
    search = batch_search.search(spec, complete(spec, full_job), gpu, global_batch, estimator, run, levers, prefer)
    return replace(search, solved=solved)
