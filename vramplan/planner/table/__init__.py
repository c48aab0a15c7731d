"""Tables: many models on many cards, each cell what `suggest` or `estimate` says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.inputs.gpu import Card
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.table.fill import Cell, Table, fill
from vramplan.planner.table.request import METHODS, SHOWN, Sheet, sheet
from vramplan.progress import Progress, silent

__all__ = ["METHODS", "SHOWN", "Cell", "Sheet", "Table", "fill", "sheet", "table"]


def table(
    models: Sequence[str | ModelSpec],
    gpus: Sequence[str | Card],
    *,
    jobs: int = 1,
    progress: Progress = silent,
    **asked: Any,
) -> Table:
    """A table of these models on these cards, on `jobs` processes; `asked` is what :func:`sheet` takes besides.

    `vramplan.render.table` writes it as Markdown and the like.

    Raises:
        VramplanError: for a name that nothing matches, and a job that cannot run.
    """
    return fill(sheet(models, gpus, **asked), jobs=jobs, progress=progress)
