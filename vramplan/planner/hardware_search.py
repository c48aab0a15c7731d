"""Which GPUs, and how many: the fewest, the fastest and the cheapest that hold a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from vramplan.analytic.architectures.lookup import is_described
from vramplan.analytic.unfolded_step import no_cycle_collection
from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.inputs.former_names import with_current_names
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.load import load_model
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.prices import Prices, load_prices
from vramplan.inputs.usual_names import accepts_usual_names
from vramplan.memory.calibration import CONFIDENCE, with_margin
from vramplan.planner.hardware_candidates import (
    PER_NODE,
    gpu_counts,
    most_of,
    name_on_platform,
    named_gpus,
    without_surpassed,
)
from vramplan.planner.hardware_plan import Hardware
from vramplan.planner.hardware_question import Question
from vramplan.planner.hardware_shortfall import shortfall
from vramplan.planner.hardware_sweep import MANY, Sweep
from vramplan.planner.preference import check_preference
from vramplan.planner.search_result import Run
from vramplan.planner.training_run import check_length, check_numbers
from vramplan.progress import Progress, silent


@accepts_usual_names
@no_cycle_collection()
def suggest_hardware(
    model: str | ModelSpec,
    gpu: str | Gpu | Sequence[str | Gpu],
    global_batch: int,
    *,
    num_gpus: int | Literal["auto"] = "auto",
    max_gpus: int = PER_NODE,
    max_price: float | None = None,
    prices: Path | str | Prices | None = None,
    samples: int | None = None,
    epochs: float = 1.0,
    tokens_total: int | None = None,
    warmup_ratio: float | None = None,
    prefer: str = "largest",
    progress: Progress = silent,
    confidence: float = CONFIDENCE,
    **job: Any,
) -> Hardware:
    """The GPUs that hold a job: the fewest, the fastest and the cheapest; keyword arguments are fields of :class:`Job`.

    Args:
        model: A shipped name, a Hub id, a folder, a config.json, or a loaded model.
        gpu: GPUs by name, several with commas or in a list; "any" for the whole catalogue.
        global_batch: Samples of one optimizer step.
        num_gpus: A number of GPUs, or "auto" for all that divide the global batch, up to `max_gpus`.
        max_gpus: The most GPUs; beyond 8 they are in several machines of 8.
        max_price: The highest price of all GPUs together for an hour.
        prices: A TOML file of prices that replace those in the package; see :mod:`vramplan.inputs.prices`.
        samples: Samples of the data set, for the time and the price of the run.
        epochs: Passes over the data set.
        tokens_total: Tokens of the whole run, instead of samples.
        warmup_ratio: Share of the optimizer steps that warm up, for their number.
        prefer: Which batch is taken on each GPU: "largest" (micro-batch), "fastest" or "headroom" (most memory free).
        progress: Called with what is being done, and the share that is done.
        confidence: How sure the verdict "fits" is to be, which sets the safety margin; 0 for none.
        **job: Fields of :class:`vramplan.Job`; what is left out of `strategy`, `offload` and `quantize` is searched.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    fixed = None if num_gpus == "auto" else num_gpus
    settings = with_current_names(job)
    counts_given = {"global_batch": global_batch, "num_gpus": fixed, "max_gpus": max_gpus, "samples": samples}
    check_numbers({**counts_given, "num_nodes": settings.get("num_nodes")}, {"epochs": epochs})
    check_length(samples, tokens_total, warmup_ratio)
    check_preference(prefer)
    if max_price is not None and not 0 < max_price < 1e9:
        raise ConfigError(f"{setting('max_price', f'{max_price:g}')}: expected a positive price per hour")
    gpus = [with_margin(one, confidence) for one in named_gpus(gpu)]
    known = prices if isinstance(prices, Prices) else load_prices(None if prices is None else Path(prices))
    if settings.get("strategy") == "device_map":  # one process: its batch need not divide
        counts = [fixed] if fixed is not None else [count for count in (2, 4, 8) if count <= max_gpus]
    else:
        counts = gpu_counts(global_batch, max_gpus, fixed, few=len(gpus) > MANY)
    enough = [one for one in gpus if most_of(one, counts[0]) == counts[0]]
    if not enough:
        raise ConfigError(f"{setting('num_gpus', counts[0])}: a machine has one {gpus[0].title}")
    spec = load_model(model)
    if not is_described(spec):
        raise UnsupportedError(
            f"{spec.name}: hardware is searched for models that the analytic estimator supports; give one GPU and"
            f" {setting('num_gpus', 1)}"
        )
    run = Run(samples, epochs, tokens_total, warmup_ratio)
    question = Question(spec, settings, global_batch, run, known, prefer)
    searched = without_surpassed(enough, known) if len(gpus) > MANY else enough
    hardware = Sweep(question, searched, counts, max_price, progress).answer()
    alone = {name_on_platform(one): f"a machine has one {one.title}" for one in gpus if one not in enough}
    hardware = replace(hardware, refused={**alone, **hardware.refused})
    without_host = any(one.sharing.offload == "none" for one in hardware.plans)
    if without_host or (hardware.plans and question.settings.get("offload") is not None):
        return hardware
    most = max_gpus if fixed is None else None
    fits = bool(hardware.plans)
    return replace(hardware, shortfall=shortfall(question, searched, counts, most, max_price, fits=fits))
