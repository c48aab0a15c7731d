"""Tables: many models on many cards, each cell what `suggest` or `estimate` says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.card import Card
from vramplan.progress import Progress, silent
from vramplan.spec import ModelSpec
from vramplan.tables.cells import Cell, Table, fill
from vramplan.tables.sheet import METHODS, SHOWN, Sheet, sheet

__all__ = ["METHODS", "SHOWN", "Cell", "Sheet", "Table", "fill", "sheet", "table"]


def table(
    models: Sequence[str | ModelSpec],
    gpus: Sequence[str | Card],
    *,
    jobs: int = 1,
    progress: Progress = silent,
    **asked: Any,
) -> Table:
    """A table of these models on these cards, on `jobs` processes; the rest as :func:`vramplan.tables.sheet` takes it.

    `vramplan.render.table` writes it as Markdown and the like.

    Raises:
        VramplanError: for a name that nothing matches, and a job that cannot run.
    """
    return fill(sheet(models, gpus, **asked), jobs=jobs, progress=progress)
