"""Tables: many models on many cards, each cell what `suggest` or `estimate` says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.table.fill import Table, fill
from vramplan.planner.table.request import METHODS, SHOWN, TableRequest, table_request
from vramplan.planner.table.row import Cell
from vramplan.progress import Progress, silent

__all__ = ["METHODS", "SHOWN", "Cell", "Table", "TableRequest", "fill", "table", "table_request"]


def table(
    models: Sequence[str | ModelSpec],
    gpus: Sequence[str | Gpu],
    *,
    jobs: int = 1,
    progress: Progress = silent,
    **asked: Any,
) -> Table:
    """A table of these models on these cards, on `jobs` processes; `asked` is what :func:`table_request` takes besides.

    `vramplan.render.table` writes it as Markdown and the like.

    Raises:
        VramplanError: for a name that nothing matches, and a job that cannot run.
    """
    return fill(table_request(models, gpus, **asked), jobs=jobs, progress=progress)
