"""Filling a table: one row after another, on as many processes as asked for."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from vramplan.analytic.estimator import VERSIONS
from vramplan.errors import ConfigError, UnsupportedError, VramplanError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.validation import check_job
from vramplan.memory.assumptions import describe_method, describe_step, describe_strategy, describe_weights
from vramplan.memory.roofline import BANDWIDTH_EFFICIENCY, LAUNCH_SECONDS, MATMUL_EFFICIENCY
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.table.request import SHOWN, TableRequest
from vramplan.planner.table.shared_steps import Shared, Traits, traits
from vramplan.progress import Progress, silent
from vramplan.version import __version__

SAFE_PATH = "PYTHONSAFEPATH"
MAX_REASONS = 6
"""Reasons why cells cannot run that are listed."""
SPEED = (
    f"a roofline, not measured: {MATMUL_EFFICIENCY:.0%} of the dense peak, {BANDWIDTH_EFFICIENCY:.0%} of the bandwidth,"
    f" {LAUNCH_SECONDS * 1e6:g} us a kernel launch; communication, loading of data and saving are left out"
)
"""What a speed assumes."""


class Place(NamedTuple):
    """A row of cells, in the order of the table: model, method, length, each by its number."""

    model: int
    method: int
    length: int


@dataclass(frozen=True, slots=True)
class Cell:
    """What one model needs on one GPU."""

    card: str
    """Short name of the GPU; for `card` the one that fits, or empty."""
    value: int | None
    """A micro-batch, tokens a second, or bytes; None if the job cannot run there."""
    fits: bool
    refused: str = ""
    """Why it cannot run."""


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one model, method and length, and what their jobs assume."""

    cells: tuple[Cell, ...]
    said: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A filled table."""

    sheet: TableRequest
    rows: dict[Place, Row]

    @property
    def refusals(self) -> list[str]:
        """Why cells cannot run, each reason once, the most frequent first."""
        reasons = Counter(cell.refused for row in self.rows.values() for cell in row.cells if cell.refused)
        frequent = reasons.most_common(MAX_REASONS)
        num_others = reasons.total() - sum(count for _, count in frequent)
        lines = [f"{why} ({count} cell{'s' * (count > 1)})" for why, count in frequent]
        return [*lines, *([f"other reasons ({num_others} cells)"] if num_others else [])]

    @property
    def note(self) -> str:
        """Version, estimator and assumptions, in one line."""
        request = self.sheet
        parts = [f"vramplan {__version__}, analytic estimator ({VERSIONS})"]
        weights_by_method: dict[str, dict[str, None]] = {}
        assumptions: dict[str, None] = {}
        for method, weights, *further in (texts for row in self.rows.values() for texts in row.said):
            weights_by_method.setdefault(method, {})[weights] = None
            assumptions |= dict.fromkeys(filter(None, further))
        parts += [f"{method}: {' or '.join(weights)}" for method, weights in weights_by_method.items()]
        parts += assumptions
        parts.append("one micro-batch to an optimizer step")
        if request.show == "speed":
            parts.append(SPEED)
        parts.append(next((card.margin_source for card in request.cards), "") or "no safety margin")
        parts += [f"- because of {why}" for why in self.refusals]
        if request.left_out:
            parts.append(f"not described and left out: {', '.join(request.left_out)}")
        return "; ".join(filter(None, parts))


def fill(request: TableRequest, *, jobs: int = 1, progress: Progress = silent) -> Table:
    """Compute every cell, on `jobs` processes.

    Raises:
        ConfigError: if no job of the table can run.
    """
    places = [
        Place(model, method, length)
        for model in range(len(request.models))
        for method in range(len(request.methods))
        for length in range(len(request.lengths))
    ]
    rows: dict[Place, Row] = {}
    for place, row in _compute_rows(request, places, min(jobs, len(places))):
        rows[place] = row
        progress(f"{request.models[place.model].name}: {len(rows)} of {len(places)} rows", len(rows) / len(places))
    reasons = [cell.refused for row in rows.values() for cell in row.cells]
    if all(reasons):
        raise ConfigError(f"no cell of the table can run: {rows[places[0]].cells[0].refused}")
    return Table(request, {place: rows[place] for place in places})


def _compute_rows(request: TableRequest, places: list[Place], jobs: int) -> Iterator[tuple[Place, Row]]:
    if jobs <= 1:
        yield from ((place, compute_row(request, place)) for place in places)
        return
    with ExitStack() as stack:  # fresh processes: a fork would take over the threads of a progress bar
        with _outside_the_working_directory():
            pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin_process, (request,))
            stack.callback(pool.shutdown, cancel_futures=True)
            places_of = {pool.submit(_compute_here, place): place for place in places}
        for future in as_completed(places_of):
            yield places_of[future], future.result()


@contextmanager
def _outside_the_working_directory() -> Iterator[None]:
    """Processes that start inside import nothing from the working directory, where ``-c`` looks for modules first."""
    if sys.version_info < (3, 11):  # without a variable for it: they start in an empty folder
        folder = os.getcwd()
        with tempfile.TemporaryDirectory() as empty:
            os.chdir(empty)
            try:
                yield
            finally:
                os.chdir(folder)
        return
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


_sheet: list[TableRequest] = []
"""The table that this process works on, sent once."""


def _begin_process(request: TableRequest) -> None:
    _sheet[:] = [request]
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent tells its processes nothing: they would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _compute_here(place: Place) -> Row:
    return compute_row(_sheet[0], place)


def compute_row(request: TableRequest, place: Place) -> Row:
    """One model, method and length on every GPU."""
    spec, method, length = request.models[place.model], request.methods[place.method], request.lengths[place.length]
    settings = {name: value for name, value in request.job.items() if method != "full" or not name.startswith("lora_")}
    settings |= {"method": method, "sequence_length": length, "micro_batch_size": 1}
    shared_steps: Known = {}
    cells: list[Cell] = []
    cards: Iterable[Gpu] = request.cards
    if request.show == "card":
        cards = sorted(cards, key=lambda card: card.plannable_bytes)
    for card in cards:
        try:
            cells.append(_cell(request, _shared(spec, settings, card, shared_steps), card))
        except VramplanError as error:
            cells.append(Cell(card.name, None, False, str(error)))
        if request.show == "card" and cells[-1].fits:
            break
    if request.show == "card":
        cells = [_smallest(cells)]
    assumptions = dict.fromkeys(
        _said(job) for (job, _), steps in shared_steps.items() if isinstance(steps, Shared) and steps.tensors
    )
    return Row(tuple(cells), tuple(assumptions))


def _cell(request: TableRequest, steps: Shared, gpu: Gpu) -> Cell:
    if not SHOWN[request.show].takes_batch:
        largest = steps.max_batch(gpu) if request.show == "max-batch" else steps.tokens_per_second(gpu)
        return Cell(gpu.name, largest, largest > 0)
    num_bytes, fits = steps.need(request.micro_batch_size, gpu)
    return Cell(gpu.name, num_bytes, fits)


def _smallest(cells: list[Cell]) -> Cell:
    """The smallest GPU that fits, of cells in order of size."""
    if cells[-1].fits:
        return cells[-1]
    runnable = [cell for cell in cells if not cell.refused]
    return Cell("", None, False, "" if runnable else cells[0].refused)


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
    if job.strategy == "device_map":  # where layers go depends on the GPU
        raise UnsupportedError(f"{setting('strategy', 'device_map')} is not tabled yet")
    key = job, traits(gpu, job)
    if key not in shared_steps:
        scalings = (
            steps.steps.scaling
            for (other, other_traits), steps in shared_steps.items()
            if isinstance(steps, Shared)
            and other == job
            and other_traits._replace(workspace=0) == key[1]._replace(workspace=0)
        )
        try:
            shared = Shared(spec, job, gpu, next(scalings, None))
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
        batches += f", {job.pictures} {'image' if job.images else 'video'}{'s' * (job.pictures > 1)} in each"
    return describe_method(job), describe_weights(job), describe_strategy(job), describe_step(job), batches


def title(sheet: TableRequest) -> str:
    """What the cells are."""
    shown = SHOWN[sheet.show]
    return shown.title + (f" at micro-batch {sheet.micro_batch_size}" if shown.takes_batch else "")
