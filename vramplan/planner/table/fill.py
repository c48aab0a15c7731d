"""Filling a table: one row after another, on as many processes as asked for."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from vramplan.analytic.estimator import VERSIONS
from vramplan.errors import ConfigError, UnsupportedError, VramplanError
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

MOST_REASONS = 6
"""Told of cells that cannot run."""
SPEED = (
    f"a roofline, not measured: {MATMUL_EFFICIENCY:.0%} of the dense peak, {BANDWIDTH_EFFICIENCY:.0%} of the bandwidth,"
    f" {LAUNCH_SECONDS * 1e6:g} us a kernel launch; communication, loading of data and saving are left out"
)
"""What a speed takes for granted."""


class Place(NamedTuple):
    """A row of cells, in the order of the table: model, method, length, each by its number."""

    model: int
    method: int
    length: int


@dataclass(frozen=True, slots=True)
class Cell:
    """What one model needs on one card."""

    card: str
    """Short name; for `card` the one that fits, or nothing."""
    value: int | None
    """A micro-batch, tokens a second, or bytes; None where the job cannot run there."""
    fits: bool
    refused: str = ""
    """Why it cannot run."""


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one model, method and length, and what their jobs take for granted."""

    cells: tuple[Cell, ...]
    said: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A filled sheet."""

    sheet: TableRequest
    rows: dict[Place, Row]

    @property
    def refusals(self) -> list[str]:
        """Why cells cannot run, each reason once, the most frequent first."""
        found = Counter(cell.refused for row in self.rows.values() for cell in row.cells if cell.refused)
        told = found.most_common(MOST_REASONS)
        left = found.total() - sum(count for _, count in told)
        shown = [f"{why} ({count} cell{'s' * (count > 1)})" for why, count in told]
        return [*shown, *([f"other reasons ({left} cells)"] if left else [])]

    @property
    def note(self) -> str:
        """Version, estimator and assumptions, in one line."""
        sheet = self.sheet
        parts = [f"vramplan {__version__}, analytic estimator ({VERSIONS})"]
        stored: dict[str, dict[str, None]] = {}
        rest: dict[str, None] = {}
        for method, weights, *others in (one for row in self.rows.values() for one in row.said):
            stored.setdefault(method, {})[weights] = None
            rest |= dict.fromkeys(filter(None, others))
        parts += [f"{method}: {' or '.join(weights)}" for method, weights in stored.items()]
        parts += rest
        parts.append("one micro-batch to an optimizer step")
        if sheet.show == "speed":
            parts.append(SPEED)
        parts.append(next((card.margin_source for card in sheet.cards), "") or "no safety margin")
        parts += [f"- because of {why}" for why in self.refusals]
        if sheet.left_out:
            parts.append(f"not described and left out: {', '.join(sheet.left_out)}")
        return "; ".join(filter(None, parts))


def fill(sheet: TableRequest, *, jobs: int = 1, progress: Progress = silent) -> Table:
    """Work every cell out, on `jobs` processes.

    Raises:
        ConfigError: where no job of the table can run.
    """
    places = [
        Place(model, method, length)
        for model in range(len(sheet.models))
        for method in range(len(sheet.methods))
        for length in range(len(sheet.lengths))
    ]
    found: dict[Place, Row] = {}
    for place, row in _worked_out(sheet, places, min(jobs, len(places))):
        found[place] = row
        progress(f"{sheet.models[place.model].name}: {len(found)} of {len(places)} rows", len(found) / len(places))
    refused = [cell.refused for row in found.values() for cell in row.cells]
    if all(refused):
        raise ConfigError(f"no cell of the table can run: {found[places[0]].cells[0].refused}")
    return Table(sheet, {place: found[place] for place in places})


def _worked_out(sheet: TableRequest, places: list[Place], jobs: int) -> Iterator[tuple[Place, Row]]:
    if jobs <= 1:
        yield from ((place, work_out(sheet, place)) for place in places)
        return
    with ExitStack() as stack:  # fresh processes: a fork would take over the threads of a progress bar
        pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin_process, (sheet,))
        stack.callback(pool.shutdown, cancel_futures=True)
        waiting = {pool.submit(_work_out_here, place): place for place in places}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


_sheet: list[TableRequest] = []
"""What this process works on, sent once."""


def _begin_process(sheet: TableRequest) -> None:
    _sheet[:] = [sheet]
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent tells its processes nothing: they would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work_out_here(place: Place) -> Row:
    return work_out(_sheet[0], place)


def work_out(sheet: TableRequest, place: Place) -> Row:
    """One model, method and length on every card."""
    spec, method, length = sheet.models[place.model], sheet.methods[place.method], sheet.lengths[place.length]
    given = {name: value for name, value in sheet.job.items() if method != "full" or not name.startswith("lora_")}
    given |= {"method": method, "sequence_length": length, "micro_batch_size": 1}
    known: Known = {}
    cells: list[Cell] = []
    cards: Iterable[Gpu] = sheet.cards
    if sheet.show == "card":
        cards = sorted(cards, key=lambda card: card.plannable_bytes)
    for card in cards:
        try:
            cells.append(_cell(sheet, _shared(spec, given, card, known), card))
        except VramplanError as error:
            cells.append(Cell(card.name, None, False, str(error)))
        if sheet.show == "card" and cells[-1].fits:
            break
    if sheet.show == "card":
        cells = [_smallest(cells)]
    said = dict.fromkeys(_said(job) for (job, _), one in known.items() if isinstance(one, Shared) and one.tensors)
    return Row(tuple(cells), tuple(said))


def _cell(sheet: TableRequest, shared: Shared, card: Gpu) -> Cell:
    if not SHOWN[sheet.show].takes_batch:
        largest = shared.max_batch(card) if sheet.show == "max-batch" else shared.tokens_per_second(card)
        return Cell(card.name, largest, largest > 0)
    num_bytes, fits = shared.need(sheet.micro_batch_size, card)
    return Cell(card.name, num_bytes, fits)


def _smallest(cells: list[Cell]) -> Cell:
    """Of what was tried in order of size."""
    if cells[-1].fits:
        return cells[-1]
    ran = [cell for cell in cells if not cell.refused]
    return Cell("", None, False, "" if ran else cells[0].refused)


Known = dict[tuple[Job, Traits], Shared | VramplanError]


def _shared(spec: ModelSpec, given: dict[str, object], card: Gpu, known: Known) -> Shared:
    """What this card shares with those before it.

    Raises:
        VramplanError: for a job that cannot run.
    """
    job = complete_job(spec, card, given)
    check_job(job, card)
    if job.lengths is not None:
        raise UnsupportedError("--lengths is not tabled yet; estimate and suggest take it")
    if job.strategy == "device_map":  # where layers go depends on the card
        raise UnsupportedError("--strategy device_map is not tabled yet")
    key = job, traits(card, job)
    if key not in known:
        scalings = (
            one.scaling
            for (other, has), one in known.items()
            if isinstance(one, Shared) and other == job and has._replace(workspace=0) == key[1]._replace(workspace=0)
        )
        try:
            shared = Shared(spec, job, card, next(scalings, None))
            shared.peak(1)
            known[key] = shared
        except VramplanError as error:
            known[key] = error
    found = known[key]
    if isinstance(found, VramplanError):
        raise found
    return found


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
