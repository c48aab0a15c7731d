"""What `vramplan oom --json` prints, as types."""

from __future__ import annotations

from vramplan.render.json_types import CheckData, Exact


class CauseData(Exact):
    """A reason why memory ran out."""

    name: str
    text: str
    changes: list[str]
    """Lines or commands, the most useful first."""


class AllocationData(Exact):
    """The tensor of the simulated run that the message fits."""

    label: str
    formula: str
    bytes: int
    phase: str
    live_bytes: int
    """In use by tensors just before."""
    sequence_length: int
    """Tokens of the longest sample with which it fits."""


class FiguresData(Exact):
    """Sizes of the message in bytes, as rounded as its text; null for those that it lacks."""

    requested: int | None
    capacity: int | None
    free: int | None
    allocated: int | None
    unallocated: int | None
    """Reserved by PyTorch and not in use by tensors."""
    reserved: int | None
    outside_allocator: int | None
    """Of the own process: CUDA context, NCCL, libraries."""


class OutOfMemoryData(Exact):
    """`vramplan oom --json`."""

    form: str
    """Which wording of which versions the message has."""
    memory: str
    """gpu or host."""
    line: int
    """Of the message in the log, from 1."""
    rank: int | None
    gpu: int | None
    phase: str | None
    step: int | None
    """Steps that the nearest progress bar shows as done."""
    went_on: int | None
    """Steps that the log counts after the message, if the run went on."""
    framework: str
    """Whose calls are in the traceback: llamafactory, axolotl, ms-swift, trl ...; empty if it is not known."""
    figures: FiguresData
    causes: list[CauseData]
    allocation: AllocationData | None
    other_messages: int
    host_bytes: int | None
    """What a node's host needs at most by estimate, if its memory ran out."""
    check: CheckData | None
    """What `vramplan check --json` prints of the configuration; null without one."""
