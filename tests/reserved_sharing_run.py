"""One rank of a row's program on an emulated GPU, and what PyTorch's allocator holds when it ends."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from tests.trl_sharing_run import print_peaks


def run(row: dict[str, Any]) -> dict[str, int]:
    """The peaks of a row's job on this rank, and the reserved bytes."""
    peaks: dict[str, int] = import_module(row["program"]).run(row)
    return {**peaks, "reserved": torch.cuda.memory_reserved()}


if __name__ == "__main__":
    print_peaks(run)
