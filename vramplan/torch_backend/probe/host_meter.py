"""Measure a run on the host: its tensors are followed and go through the simulated allocator."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from vramplan.inputs.gpu import Gpu
from vramplan.memory.allocator import AllocatorSettings, Block, CachingAllocator, OutOfMemory
from vramplan.memory.overheads import cublas_workspace
from vramplan.torch_backend.model.materialize import place
from vramplan.torch_backend.probe.phase_peaks import Phases
from vramplan.torch_backend.trace.storage_tracker import Record, StorageTracker
from vramplan.units import format_bytes


class HostMeter(StorageTracker):
    """Follows real tensors on the host and passes their allocations and frees to the simulated allocator.

    The GPU's cuBLAS workspaces, which the host does not have, are allocated besides.
    """

    def __init__(self, gpu: Gpu, cap_bytes: int | None, settings: AllocatorSettings, history: bool) -> None:
        super().__init__()
        self._workspaces = [cublas_workspace(gpu)] * 2  # one for the forward thread, one for the backward thread
        self._history: list[Any] | None = [] if history else None
        capacity = {} if cap_bytes is None else {"capacity": cap_bytes}
        self.allocator = CachingAllocator(settings=settings, history=self._history, **capacity)
        self.phases = Phases()
        self._blocks: dict[int, Block] = {}
        self._requested = self._requested_peak = 0

    def start(self) -> None:
        """Does nothing: the simulated allocator is ready."""

    def tracking(self, module: torch.nn.Module) -> AbstractContextManager[Any]:
        """Follow every tensor created inside."""
        return self

    def loaded(self, module: torch.nn.Module) -> None:
        """The model is built: follow its tensors."""
        self.sums.calibrate(self)
        place(module, self)

    def enter(self, phase: str) -> None:
        """Start `phase`."""
        allocator = self.allocator
        self.phases.close(allocator.peak_allocated, allocator.peak_reserved, self._requested_peak)
        allocator.peak_allocated, allocator.peak_reserved = allocator.allocated, allocator.reserved
        self._requested_peak = self._requested
        self.phases.open(phase)
        super().enter(phase)
        while phase == "forward" and self._workspaces:
            workspace = self._workspaces.pop()
            self.allocate(Record(workspace.num_bytes, workspace.label, "", (workspace.num_bytes,), "uint8"))

    def allocate(self, record: Record) -> int:
        """Record an allocation and serve it from the simulated allocator.

        Raises:
            torch.OutOfMemoryError: if it does not fit.
        """
        number = super().allocate(record)
        try:
            block = self._blocks[number] = self.allocator.malloc(record.num_bytes)
        except OutOfMemory as error:
            raise torch.OutOfMemoryError(
                f"out of memory. Tried to allocate {format_bytes(error.requested_bytes)};"
                f" {format_bytes(error.reserved_bytes)} of {format_bytes(self.allocator.capacity)} are reserved"
            ) from error
        self._requested += record.num_bytes
        self._requested_peak = max(self._requested_peak, self._requested)
        if self._history is not None:
            self._history.append(("alloc", block.address, record.num_bytes))
        return number

    def free(self, number: int) -> None:
        """Record a free."""
        super().free(number)
        block = self._blocks.pop(number, None)
        if block is None:  # its allocation failed
            return
        self._requested -= self.records[number].num_bytes
        if self._history is not None:
            self._history.append(("free_completed", block.address, self.records[number].num_bytes))
        self.allocator.free(block)

    def reserved_bytes(self) -> int:
        """Bytes reserved by the simulated allocator now."""
        return self.allocator.reserved

    def history(self) -> list[tuple[str, int, int]]:
        """Every (action, address, bytes) so far, as torch.cuda.memory._snapshot names them."""
        return [tuple(event) for event in self._history or ()]
