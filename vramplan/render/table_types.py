"""What `vramplan table --json` prints, as types."""

from __future__ import annotations

from typing_extensions import NotRequired

from vramplan.render.json_types import Exact


class CellData(Exact):
    """A cell of a table; which figure it has depends on `--show`."""

    model: str
    method: str
    sequence_length: int
    gpu: str | None
    fits: bool
    refused: str | None
    """Why it cannot run."""
    max_micro_batch_size: NotRequired[int | None]
    tokens_per_second: NotRequired[int | None]
    device_total_bytes: NotRequired[int | None]


class TableData(Exact):
    """`vramplan table --json`; several tables are an object of them by name."""

    show: str
    note: str
    cells: list[CellData]
    micro_batch_size: NotRequired[int]
