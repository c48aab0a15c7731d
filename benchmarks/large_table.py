"""A table of 126,000 cells: one share of its rows, from which the whole is worked out, or all of them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.process import Cost, run
from vramplan.inputs.catalog import all_gpus, model_names

MODELS, GPUS = 150, 70
METHODS = "full,lora,qlora,dora"
LENGTHS = "512,2048,8192"
CELLS = MODELS * GPUS * 4 * 3
CORES = 2


def flags() -> list[str]:
    """The table's request on the command line."""
    models = sorted(model_names())
    gpus = sorted(gpu.name for gpu in all_gpus() if gpu.vendor == "NVIDIA")
    chosen = [
        ",".join(names[i * len(names) // count] for i in range(count))
        for names, count in ((models, MODELS), (gpus, GPUS))
    ]
    return [
        "--models",
        chosen[0],
        "--gpus",
        chosen[1],
        "--methods",
        METHODS,
        "--seq-lens",
        LENGTHS,
        "--jobs",
        str(CORES),
    ]


def measure(vramplan: list[str], folder: Path, environment: dict[str, str], shares: int) -> tuple[Cost, Cost]:
    """The first and the second run of one of so many shares; of the whole table, printed as CSV, if it is 1."""
    how = ["--shard", f"1/{shares}"] if shares > 1 else ["--format", "csv"]
    first, second = (run([*vramplan, "table", *flags(), *how], folder, environment) for _ in range(2))
    return first, second
