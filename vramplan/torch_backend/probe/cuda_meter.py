"""A run on a card, measured by torch.cuda's own counters."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from vramplan.torch_backend.probe.phase_peaks import Phases

MOST_HISTORY = 2_000_000
"""Allocations and frees kept at most: three steps of a 70B model make some 500,000."""


class CudaMeter:
    """torch.cuda's statistics, read and reset between phases."""

    def __init__(self, device: torch.device, cap_bytes: int | None, history: bool) -> None:
        self.device, self.phases = device, Phases()
        torch.cuda.set_device(device)
        torch.empty(1, device=device)  # makes the context
        gc.collect()
        torch.cuda.empty_cache()
        if cap_bytes is not None:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, cap_bytes / total), device)
        if history:
            torch.cuda.memory._record_memory_history(max_entries=MOST_HISTORY, context=None, stacks="python")

    def watching(self, module: torch.nn.Module) -> AbstractContextManager[None]:
        """Nothing looks at single tensors."""
        return nullcontext()

    def loaded(self, module: torch.nn.Module) -> None:
        """The model lies on the card: what its construction left over, and how high that came, goes."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def enter(self, phase: str) -> None:
        """What follows belongs to `phase`; None of what ran before is still running."""
        torch.cuda.synchronize(self.device)
        stats = torch.cuda.memory_stats(self.device)
        self.phases.close(
            stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"], stats["requested_bytes.all.peak"]
        )
        torch.cuda.reset_peak_memory_stats(self.device)
        self.phases.open(phase)

    def called(self, name: str) -> AbstractContextManager[None]:
        """Tensors have no names here."""
        return nullcontext()

    def categorize(self, category: str, values: Iterable[Any], name: str = "") -> None:
        """Nor categories."""

    def reserved_bytes(self) -> int:
        """What torch's allocator holds right now."""
        return int(torch.cuda.memory_reserved(self.device))

    def history(self) -> list[tuple[str, int, int]]:
        """Every [action, address, bytes] so far, as torch names them."""
        snapshot = torch.cuda.memory._snapshot(self.device)
        index = self.device.index or 0
        return [(one["action"], one.get("addr", 0), one.get("size", 0)) for one in snapshot["device_traces"][index]]
