"""Filling a table: its rows are computed, or taken from what is kept between runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vramplan.analytic.job_steps import VERSIONS
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, as_python, spell
from vramplan.inputs.job import Job
from vramplan.memory.calibration import margin_of
from vramplan.planner.table.effort import by_effort
from vramplan.planner.table.kept_rows import KeptRows
from vramplan.planner.table.processes import compute_rows
from vramplan.planner.table.request import SHOWN, TableRequest
from vramplan.planner.table.row import Place, Row, places_of
from vramplan.progress import Progress, silent
from vramplan.result import Result
from vramplan.version import __version__

MAX_REASONS = 6
"""Reasons why cells cannot run that are listed."""
MAX_EXAMPLES = 3
"""Cells that the note names."""
SMALLER_ON_LARGER = (
    "a GPU can fit less than one with less memory, because tensors leave other gaps in what PyTorch has reserved, or"
    " because the kernels or the dtype differ"
)
SPEED = "estimated, not measured; reading data and saving are left out"
"""What a speed assumes."""


@dataclass(frozen=True, slots=True)
class Table(Result):
    """A filled table."""

    sheet: TableRequest
    rows: dict[Place, Row]

    @property
    def refusals(self) -> list[str]:
        """Why cells cannot run, each reason once, the most frequent first."""
        reasons = Counter(cell.reason for row in self.rows.values() for cell in row.cells if cell.reason)
        frequent = reasons.most_common(MAX_REASONS)
        num_others = reasons.total() - sum(count for _, count in frequent)
        lines = [f"{spell(why, as_python)} ({count} cell{'s' * (count > 1)})" for why, count in frequent]
        return [*lines, *([f"other reasons ({num_others} cells)"] if num_others else [])]

    @property
    def smaller_on_larger(self) -> list[str]:
        """Cells with a smaller micro-batch than on a GPU with less memory, each with both."""
        request = self.sheet
        if request.show != "max-batch":
            return []
        by_memory = sorted(range(len(request.cards)), key=lambda number: request.cards[number].usable_bytes)
        lines = []
        for place, row in self.rows.items():
            most, at = -1, by_memory[0]
            for number in by_memory:
                value, smaller, larger = row.cells[number].value, request.cards[at], request.cards[number]
                if value is None:
                    continue
                if value > most:
                    most, at = value, number
                elif value < most and smaller.usable_bytes < larger.usable_bytes:
                    name = f"{request.models[place.model].name} {request.methods[place.method]}"
                    length = f" {request.lengths[place.length]:,} tokens" * (len(request.lengths) > 1)
                    lines.append(f"{name}{length}: {value} on {larger.title}, {most} on {smaller.title}")
        return lines

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
        job = Job(**{name: request.job[name] for name in ("strategy", "num_gpus") if name in request.job})
        parts += dict.fromkeys(margin_of(job, gpu).source for gpu in request.cards)
        parts += [f"- because of {why}" for why in self.refusals]
        if lines := self.smaller_on_larger:
            more = f"; {len(lines) - MAX_EXAMPLES} more" * (len(lines) > MAX_EXAMPLES)
            parts.append(f"{SMALLER_ON_LARGER} ({'; '.join(lines[:MAX_EXAMPLES])}{more})")
        if request.left_out:
            parts.append(f"not described and left out: {', '.join(request.left_out)}")
        return "; ".join(filter(None, parts))


def fill(request: TableRequest, *, jobs: int = 1, progress: Progress = silent) -> Table:
    """Compute every cell, on `jobs` processes.

    Raises:
        ConfigError: if no job of the table can run.
    """
    return complete(request, rows_at(request, places_of(request), jobs=jobs, progress=progress))


def complete(request: TableRequest, rows: Mapping[Place, Row]) -> Table:
    """The table of all these rows.

    Raises:
        ConfigError: if no job of the table can run.
    """
    places = places_of(request)
    if all(cell.reason for row in rows.values() for cell in row.cells):
        raise ConfigError(f"every cell of the table is empty: {rows[places[0]].cells[0].reason}")
    return Table(request, {place: rows[place] for place in places})


def rows_at(
    request: TableRequest, places: Sequence[Place], *, jobs: int = 1, progress: Progress = silent
) -> dict[Place, Row]:
    """Some rows of a table, on `jobs` processes; rows that were kept are not computed again."""
    kept = KeptRows(request)
    rows = {place: row for place in places if (row := kept.load(place)) is not None}
    missing = by_effort(request, [place for place in places if place not in rows])
    for place, row in compute_rows(request, missing, min(jobs, len(missing))):
        rows[place] = row
        kept.store(place, row)
        progress(f"{request.models[place.model].name}: {len(rows)} of {len(places)} rows", len(rows) / len(places))
    return rows


def title(sheet: TableRequest) -> str:
    """What the cells are."""
    shown = SHOWN[sheet.show]
    return shown.title + (f" at micro-batch {sheet.micro_batch_size}" if shown.takes_batch else "")
