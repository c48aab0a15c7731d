"""Measure a run on a GPU by the counters of torch.cuda."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from vramplan.torch_backend.probe.phase_peaks import Phases

MAX_HISTORY = 2_000_000
"""Allocations and frees recorded at most: three steps of a 70B model make about 500,000."""


class CudaMeter:
    """Reads and resets torch.cuda's memory statistics between phases."""

    def __init__(self, device: torch.device, cap_bytes: int | None, history: bool) -> None:
        self.device, self.phases = device, Phases()
        self._cap_bytes, self._history = cap_bytes, history

    def start(self) -> None:
        """Create the CUDA context, limit PyTorch's allocator, start recording.

        Raises:
            RuntimeError: CUDA's own, such as out of memory.
        """
        device, cap_bytes = self.device, self._cap_bytes
        torch.cuda.set_device(device)
        torch.empty(1, device=device)  # creates the context
        gc.collect()
        torch.cuda.empty_cache()
        if cap_bytes is not None:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total), device)
        if self._history:
            torch.cuda.memory._record_memory_history(max_entries=MAX_HISTORY, context=None, stacks="python")

    def tracking(self, module: torch.nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def loaded(self, module: torch.nn.Module, is_mapped: bool = False) -> None:
        """The model is on the GPU: free the memory cached during its construction, reset the peaks.

        What transformers itself caches as it loads a model onto the GPU (`is_mapped`) is part of a real run. Others are
        made on the host and moved, so the workspace that cuBLAS got here, for DoRA's magnitudes, is freed, too.
        """
        gc.collect()
        if is_mapped:
            return
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def enter(self, phase: str) -> None:
        """Start `phase`, after all kernels of the phase before have finished."""
        torch.cuda.synchronize(self.device)
        stats = torch.cuda.memory_stats(self.device)
        self.phases.close(
            stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"], stats["requested_bytes.all.peak"]
        )
        torch.cuda.reset_peak_memory_stats(self.device)
        self.phases.open(phase)

    def called(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def categorize(self, category: str, values: Iterable[Any], name: str = "") -> None:
        """Does nothing: torch.cuda's statistics do not tell tensors apart."""

    def reserved_bytes(self) -> int:
        """Bytes reserved by PyTorch's allocator now."""
        return int(torch.cuda.memory_reserved(self.device))

    def history(self) -> list[tuple[str, int, int]]:
        """Every (action, address, bytes) so far, as torch.cuda.memory._snapshot names them."""
        snapshot = torch.cuda.memory._snapshot(self.device)
        index = self.device.index or 0
        return [
            (event["action"], event.get("addr", 0), event.get("size", 0)) for event in snapshot["device_traces"][index]
        ]
