"""One row of a table: a model, method and length on every GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from vramplan.dataclass import dataclass
from vramplan.errors import UnsupportedError, VramplanError, as_python, setting, spell
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import ROLLOUTS
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.validation import check_job
from vramplan.memory.assumptions import describe_method, describe_step, describe_strategy, describe_weights
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.table.request import SHOWN, TableRequest
from vramplan.planner.table.shared_steps import Shared, Traits, traits


class Place(NamedTuple):
    """A row's place in the table: model, method, length, each by its number."""

    model: int
    method: int
    length: int


@dataclass(frozen=True, slots=True)
class Cell:
    """What one model needs on one GPU."""

    card: str
    """Short name of the GPU; for `card` the one that fits, or empty."""
    value: int | None
    """A micro-batch, tokens a second, or bytes; None if the job cannot run there, or its time is not known."""
    fits: bool
    reason: str = ""
    """Why it cannot run; its settings are not spelled yet (:func:`vramplan.errors.spell`)."""

    @property
    def refused(self) -> str:
        """Why it cannot run, its settings as keyword arguments."""
        return spell(self.reason, as_python)


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one model, method and length, and what their jobs assume."""

    cells: tuple[Cell, ...]
    said: tuple[tuple[str, ...], ...]


def places_of(request: TableRequest) -> list[Place]:
    """The rows of a table, in order."""
    return [
        Place(model, method, length)
        for model in range(len(request.models))
        for method in range(len(request.methods))
        for length in range(len(request.lengths))
    ]


def compute_row(request: TableRequest, place: Place) -> Row:
    """One model, method and length on every GPU."""
    spec, method, length = request.models[place.model], request.methods[place.method], request.lengths[place.length]
    settings = {name: value for name, value in request.job.items() if method != "full" or not name.startswith("lora_")}
    settings |= {"method": method, "sequence_length": length, "micro_batch_size": 1}
    shared_steps: Known = {}
    cells: list[Cell] = []
    cards: Iterable[Gpu] = request.cards
    if request.show == "card":
        cards = sorted(cards, key=lambda card: card.usable_bytes)
    for card in cards:
        try:
            cells.append(_cell(request, _shared(spec, settings, card, shared_steps), card))
        except VramplanError as error:
            cells.append(Cell(card.name, None, False, error.text))
        if request.show == "card" and cells[-1].fits:
            break
    if request.show == "card":
        cells = [_smallest(cells)]
    assumptions = dict.fromkeys(
        _said(job) for (job, _), steps in shared_steps.items() if isinstance(steps, Shared) and steps.tensors
    )
    return Row(tuple(cells), tuple(assumptions))


def _cell(request: TableRequest, steps: Shared, gpu: Gpu) -> Cell:
    """What one job needs on a GPU.

    Raises:
        UnsupportedError: for a speed where no time is known.
    """
    if not SHOWN[request.show].takes_batch:
        largest = steps.max_batch(gpu) if request.show == "max-batch" else steps.tokens_per_second(gpu)
        return Cell(gpu.name, largest, largest > 0)
    num_bytes, fits = steps.need(request.micro_batch_size, gpu)
    return Cell(gpu.name, num_bytes, fits)


def _smallest(cells: list[Cell]) -> Cell:
    """The smallest GPU that fits, of cells in order of size."""
    if cells[-1].fits:
        return cells[-1]
    runnable = [cell for cell in cells if not cell.reason]
    return Cell("", None, False, "" if runnable else cells[0].reason)


Known = dict[tuple[Job, Traits], Shared | VramplanError]


def _shared(spec: ModelSpec, settings: dict[str, object], gpu: Gpu, shared_steps: Known) -> Shared:
    """The simulated steps that this GPU shares with those before it.

    Raises:
        VramplanError: for a job that cannot run.
    """
    job = complete_job(spec, gpu, settings)
    check_job(job, gpu)
    if job.lengths is not None:
        raise UnsupportedError(f"{setting('lengths')} is not tabled yet; estimate and suggest take it")
    if job.task in ROLLOUTS:  # not every micro-batch has whole groups of completions
        raise UnsupportedError(f"{setting('task', job.task)} is not tabled yet; estimate and suggest take it")
    if job.strategy == "device_map":  # where layers go depends on the GPU
        raise UnsupportedError(f"{setting('strategy', 'device_map')} is not tabled yet")
    key = job, traits(spec, gpu, job)
    if key not in shared_steps:
        similar = (
            steps
            for (other, other_traits), steps in shared_steps.items()
            if isinstance(steps, Shared)
            and other == job
            and other_traits._replace(workspace=0) == key[1]._replace(workspace=0)
        )
        try:
            shared = Shared(spec, job, gpu, next(similar, None))
            shared.peak(1)
            shared_steps[key] = shared
        except VramplanError as error:
            shared_steps[key] = error
    steps_or_error = shared_steps[key]
    if isinstance(steps_or_error, VramplanError):
        raise steps_or_error
    return steps_or_error


def _said(job: Job) -> tuple[str, ...]:
    """What a cell's job takes for granted, beside its length."""
    batches = f"{job.batches} samples, all equally long"
    if job.pictures:
        batches += f", {job.pictures} {job.picture_kind}{'s' * (job.pictures > 1)} in each"
    return describe_method(job), describe_weights(job), describe_strategy(job), describe_step(job), batches
