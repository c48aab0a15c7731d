"""The ladder: global batches that a run may climb, each checked by the planner before the run starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vramplan.adaptive.rung import Rung
from vramplan.adaptive.switches import with_safe_switches
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.calibration import CONFIDENCE
from vramplan.planner.kept_search import suggest
from vramplan.planner.load import load_both
from vramplan.planner.search_result import Plan
from vramplan.planner.training_run import check_numbers
from vramplan.progress import Progress, silent

if TYPE_CHECKING:
    from vramplan.inputs.job import Job

FACTOR = 2
"""From one global batch to the next."""


@dataclass(frozen=True, slots=True)
class LadderPlan:
    """A ladder with the question that it answers."""

    model: str
    gpu: Gpu
    job: Job
    rungs: tuple[Rung, ...]
    too_large: int | None
    """The global batch that ends the ladder because it does not fit; None if it ends where it was asked to."""
    switches_checked: bool = True
    """Whether runs that switch between the rungs were simulated; not for models that are traced, and not if lengths
    vary."""


def ladder(
    model: str | ModelSpec, gpu: str | Gpu, global_batch: int, largest_global_batch: int, **settings: Any
) -> tuple[Rung, ...]:
    """The rungs of :func:`plan_ladder`, ascending in global batch; the same arguments.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    return plan_ladder(model, gpu, global_batch, largest_global_batch, **settings).rungs


def plan_ladder(
    model: str | ModelSpec,
    gpu: str | Gpu,
    global_batch: int,
    largest_global_batch: int,
    *,
    prefer: str = "largest",
    confidence: float = CONFIDENCE,
    progress: Progress = silent,
    trust_remote_code: bool = False,
    **job: Any,
) -> LadderPlan:
    """The global batches from one to another, each twice the one before, in the way that the planner prefers.

    The ladder ends below the first global batch that does not fit: it is empty if that is the smallest. What each rung
    needs is what a run needs that stays on it from its beginning. Runs that switch between the rungs, with an empty
    cache before each switch (``torch.cuda.empty_cache()``), are simulated as well; micro-batches that run out of memory
    in them give way to smaller ones. `expandable_segments` is on unless it is set to False, which takes more of them.

    Args:
        model: A shipped name, a Hub id, a folder, a config.json, or a loaded model.
        gpu: A name from the catalogue, "auto" for the GPU in this machine, or a loaded one.
        global_batch: Samples of an optimizer step at the beginning of the run.
        largest_global_batch: The most that the run may grow to.
        prefer: As for :func:`vramplan.suggest`.
        confidence: How sure the verdict "fits" is to be.
        progress: Called with what is being done, and the share that is done.
        trust_remote_code: Whether a trace may run code that comes with the model.
        **job: Fields of :class:`vramplan.Job`.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    check_largest(global_batch, largest_global_batch)
    job = {"expandable_segments": True} | job
    spec, card = load_both(model, gpu, confidence)
    batches = global_batches(global_batch, largest_global_batch)
    rungs: list[Rung] = []
    too_large = None
    for number, batch in enumerate(batches):
        progress(f"global batch {batch}", number / len(batches))
        search = suggest(
            spec, card, batch, prefer=prefer, advice=False, confidence=confidence,
            trust_remote_code=trust_remote_code, **job,
        )  # fmt: skip
        if search.recommended is None:
            too_large = batch
            break
        rungs.append(_rung(search.recommended, search.plans))
    progress("switches between the rungs", 0.95)
    safe = with_safe_switches(spec, search.job, card, rungs)
    kept = tuple(rungs) if safe is None else safe
    return LadderPlan(spec.name, card, search.job, kept, too_large, safe is not None)


def check_largest(global_batch: int, largest_global_batch: int) -> None:
    """Refuse ends of a ladder that are none.

    Raises:
        ConfigError: naming the setting.
    """
    check_numbers({"global_batch": global_batch, "largest_global_batch": largest_global_batch}, {})
    if largest_global_batch < global_batch:
        raise ConfigError(
            f"{setting('largest_global_batch', largest_global_batch)} is less than"
            f" {setting('global_batch', global_batch)}"
        )


def global_batches(smallest: int, largest: int) -> list[int]:
    """The smallest, and its doubles up to the largest.

    >>> global_batches(12, 100)
    [12, 24, 48, 96]
    """
    batches = [smallest]
    while batches[-1] * FACTOR <= largest:
        batches.append(batches[-1] * FACTOR)
    return batches


def _rung(plan: Plan, plans: Sequence[Plan]) -> Rung:
    """A plan with those of smaller micro-batches as its alternatives."""
    smaller = [one for one in plans if one.micro_batch_size < plan.micro_batch_size]
    smaller.sort(key=lambda one: -one.micro_batch_size)
    return Rung(*_figures(plan), alternatives=tuple(Rung(*_figures(one)) for one in smaller))


def _figures(plan: Plan) -> tuple[int, int, int, int, float | None]:
    time = plan.estimate.step_time
    return (
        plan.micro_batch_size,
        plan.gradient_accumulation_steps,
        plan.data_parallel,
        plan.estimate.device_total_bytes,
        None if time is None else time.seconds,
    )


def check_ladder(rungs: Sequence[Rung]) -> tuple[Rung, ...]:
    """Refuse rungs that are no ladder.

    Raises:
        ConfigError: if there are none, if they do not ascend, or if an alternative is of another global batch.
    """
    if not rungs:
        raise ConfigError("a ladder without rungs: no global batch fits, or none was given")
    batches = [rung.global_batch_size for rung in rungs]
    if batches != sorted(set(batches)):
        raise ConfigError(f"the rungs of a ladder ascend in global batch, not {', '.join(map(str, batches))}")
    for rung in rungs:
        micros = [rung.micro_batch_size, *(other.micro_batch_size for other in rung.alternatives)]
        if micros != sorted(set(micros), reverse=True):
            raise ConfigError(f"alternatives have ever smaller micro-batches, not {', '.join(map(str, micros))}")
        for other in rung.alternatives:
            if other.global_batch_size != rung.global_batch_size:
                raise ConfigError(
                    f"an alternative to global batch {rung.global_batch_size} has {other.global_batch_size}"
                )
    return tuple(rungs)
