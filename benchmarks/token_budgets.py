"""Token budgets against runs whose samples differ in length: which of them run out of memory.

    python -m benchmarks.token_budgets                prints the table
    python -m benchmarks.token_budgets --write        keeps it: benchmarks/token_budgets.json
    python -m benchmarks.token_budgets --draws 10     so many runs of each kind

Each run has samples drawn from a distribution of lengths, in micro-batches by vramplan's sampler, and is replayed
through the simulated allocator under the limit that the budget was made for, safety margin left out. A share says
how many of the runs run out of memory if micro-batches have so many times the budget's tokens.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.length_distributions import KINDS, lengths
from vramplan.analytic.mixed_batches import BatchShape
from vramplan.batching import TokenBudgetSampler
from vramplan.memory.calibration import CONFIDENCE
from vramplan.planner.load import load_both
from vramplan.planner.mixed_runs import MixedRuns
from vramplan.planner.token_budget import COUNTED, TokenBudget, token_budget

KEPT = Path(__file__).with_suffix(".json")
JOBS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Qwen/Qwen2.5-7B-Instruct", "rtx4090", {"quantize": "nf4", "attention": "flash"}),
    ("Qwen/Qwen2.5-0.5B", "rtx3060", {"method": "full", "attention": "flash"}),
)
STEPS, MICRO_BATCHES, ROUNDED = 2, 12, 64
"""Optimizer steps of a run, micro-batches in each, and what the collator rounds lengths up to."""
FEWER = 3
"""One in so many runs is tried with more tokens than the budget."""
FACTORS = {True: (1.0, 1.03), False: (1.0, 1.1)}
"""Multiples of the budget that runs are tried with, with expandable segments and without."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.token_budgets")
    parser.add_argument("--draws", type=int, default=42, help="runs of each kind (42, which makes 1,008)")
    parser.add_argument("--write", action="store_true", help="keep the result in the repository")
    options = parser.parse_args()
    rows = [
        row
        for model, gpu, job in JOBS
        for expandable in (True, False)
        for counting in COUNTED
        for row in compared(model, gpu, {**job, "expandable_segments": expandable}, counting, options.draws)
    ]
    if options.write:
        KEPT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def compared(model: str, gpu: str, job: dict[str, Any], counting: str, draws: int) -> list[dict[str, Any]]:
    """Rows of the table for one job and one way of counting, each for a distribution of lengths."""
    (budget,) = token_budget(model, gpu, batches=counting, **job).budgets
    rows = []
    for kind in KINDS:
        row: dict[str, Any] = {
            "model": model, "gpu": gpu, "expandable_segments": job["expandable_segments"], "counting": counting,
            "lengths": kind, "runs": draws, "max_tokens": budget.max_tokens,
        }  # fmt: skip
        first, larger = FACTORS[job["expandable_segments"]]
        row["out_of_memory"] = out_of_memory(model, gpu, budget, kind, first, draws)
        few = max(1, draws // FEWER)
        row |= {"larger": larger, "larger_runs": few}
        row["larger_out_of_memory"] = out_of_memory(model, gpu, budget, kind, larger, few)
        print(row, flush=True)
        rows.append(row)
    return rows


def out_of_memory(model: str, gpu_name: str, budget: TokenBudget, kind: str, factor: float, draws: int) -> int:
    """How many of so many runs run out of memory."""
    spec, gpu = load_both(model, gpu_name, CONFIDENCE)
    runs = MixedRuns(spec, budget.estimate.job, gpu)
    tokens = int(factor * budget.max_tokens)
    return sum(not runs.survives(batches(kind, budget.counting, tokens, seed)) for seed in range(draws))


def batches(kind: str, counting: str, tokens: int, seed: int) -> list[list[BatchShape]]:
    """The shapes of the micro-batches of a run, by optimizer step."""
    packed = counting == "packed"
    sizes = [min(size, tokens // ROUNDED * ROUNDED) for size in lengths(kind, 4000, seed)]
    sampler = TokenBudgetSampler(
        sizes,
        tokens,
        global_tokens=MICRO_BATCHES * tokens,
        padding_free=packed,
        pad_to_multiple_of=ROUNDED,
        micro_batch_overhead=1 << 40,  # the fewest micro-batches, which are the fullest
        seed=seed,
    )
    shapes: list[list[BatchShape]] = []
    for step, _ in zip(sampler, range(STEPS), strict=False):
        of_step = []
        for batch in step:
            chosen = [sizes[sample] for sample in batch]
            row = sampler.tokens(batch)
            of_step.append(BatchShape(1, row) if packed else BatchShape(len(batch), row // len(chosen)))
        shapes.append(of_step)
    return shapes


if __name__ == "__main__":
    main()
