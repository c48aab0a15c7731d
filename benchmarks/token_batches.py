"""Micro-batches up to a budget of tokens against fixed numbers of samples with the same largest memory.

    python -m benchmarks.token_batches           prints the table
    python -m benchmarks.token_batches --write   keeps it: benchmarks/token_batches.json, docs/images/token-batches.svg

The number of samples is what vramplan says fits if all samples are as long as the longest, and the budget is the tokens
of that micro-batch: both need the same memory at most. Times are vramplan's estimates for the GPU, not measurements.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import vramplan
from benchmarks.length_distributions import KINDS, lengths
from benchmarks.token_batches_picture import draw, table
from vramplan.batching import TokenBudgetSampler
from vramplan.batching.packing import best_fit

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "benchmarks/token_batches.json"
PICTURE = ROOT / "docs/images/token-batches.svg"
MODEL, GPU = "Qwen/Qwen2.5-7B-Instruct", "a100-80gb"
SAMPLES, SEEDS, ROUNDED = 4000, 10, 16
STEP_TOKENS = 4
"""Real tokens of an optimizer step, in budgets of a micro-batch."""

Batch = list[int]
Steps = list[list[Batch]]
Cost = Callable[[Sequence[int]], tuple[int, float]]
"""Lengths of a micro-batch -> its tokens and seconds."""


@cache
def seconds(samples: int, length: int) -> float:
    """Estimated time of a micro-batch of so many samples of this length, forward and backward."""
    estimate = vramplan.estimate(MODEL, GPU, micro_batch_size=samples, sequence_length=length)
    assert estimate.step_time is not None
    return estimate.step_time.micro_step_seconds


def padded_tokens(batch: Sequence[int]) -> tuple[int, float]:
    """Tokens and seconds of the lengths of a padded micro-batch."""
    longest = -(-max(batch) // ROUNDED) * ROUNDED
    return len(batch) * longest, seconds(len(batch), longest)


def packed_tokens(batch: Sequence[int]) -> tuple[int, float]:
    """Tokens and seconds of a padding-free one: of one row, less the attention between samples.

    Attention is quadratic in the length of a sample and all else linear in tokens, so that two rows of half the length
    differ from one by half of its attention.
    """
    total = -(-sum(batch) // (2 * ROUNDED)) * 2 * ROUNDED
    row = seconds(1, total)
    attention = max(0.0, 2 * (row - seconds(2, total // 2)))
    return sum(batch), row - attention * (1 - sum(length**2 for length in batch) / total**2)


def fixed(sizes: Sequence[int], order: Sequence[int], count: int, step_tokens: int) -> Steps:
    """Micro-batches of so many samples in this order, and about as many real tokens in each step."""
    batches = [list(order[start : start + count]) for start in range(0, len(order), count)]
    steps: Steps = [[]]
    tokens = 0
    for batch in batches:
        steps[-1].append(batch)
        tokens += sum(sizes[sample] for sample in batch)
        if tokens >= step_tokens * len(steps) and batch is not batches[-1]:
            steps.append([])
    return steps


def shuffled(seed: int) -> list[int]:
    """A random order of the samples."""
    return random.Random(seed).sample(range(SAMPLES), SAMPLES)


def grouped(sizes: Sequence[int], count: int, seed: int) -> list[int]:
    """As ``group_by_length`` of transformers 5.23 orders: groups of 50 micro-batches, each sorted by length."""
    order = shuffled(seed)
    size = max(1, min(len(order) // (count * 4), 50)) * count
    groups = [order[start : start + size] for start in range(0, len(order), size)]
    return list(chain.from_iterable(sorted(group, key=lambda sample: -sizes[sample]) for group in groups))


def by_number(sizes: Sequence[int], count: int, tokens: int, seed: int) -> Steps:
    """Micro-batches of so many samples as they come."""
    return fixed(sizes, shuffled(seed), count, STEP_TOKENS * tokens)


def by_length(sizes: Sequence[int], count: int, tokens: int, seed: int) -> Steps:
    """Micro-batches of so many samples in transformers' order by length."""
    return fixed(sizes, grouped(sizes, count, seed), count, STEP_TOKENS * tokens)


def budget(sizes: Sequence[int], tokens: int, seed: int, **options: Any) -> Steps:
    """The steps of vramplan's sampler."""
    return list(TokenBudgetSampler(sizes, tokens, global_tokens=STEP_TOKENS * tokens, seed=seed, **options))


def spread(sizes: Sequence[int], steps: Steps) -> float:
    """How much the mean lengths of the steps differ, in what it is if samples are drawn at random."""
    step_means = [mean(sizes[sample] for batch in step for sample in batch) for step in steps]
    expected = mean((pstdev(sizes) ** 2) / sum(map(len, step)) for step in steps) ** 0.5
    return pstdev(step_means) / expected


def figures(sizes: Sequence[int], way: Callable[[int], Steps], cost: Cost) -> dict[str, float]:
    """What an epoch costs, and how random its steps are in the mean of several epochs."""
    steps = way(0)
    costs = [cost([sizes[sample] for sample in batch]) for step in steps for batch in step]
    return {
        "micro_batches": len(costs),
        "padding": round(1 - sum(sizes) / sum(tokens for tokens, _ in costs), 4),
        "largest": max(tokens for tokens, _ in costs),
        "seconds": round(sum(time for _, time in costs), 1),
        "spread": round(mean(spread(sizes, way(seed)) for seed in range(SEEDS)), 2),
    }


def measure() -> dict[str, Any]:
    """Every way on every kind of lengths."""
    results: dict[str, Any] = {"model": MODEL, "gpu": GPU, "samples": SAMPLES, "kinds": {}}
    for kind, (_, longest) in KINDS.items():
        sizes = lengths(kind, SAMPLES, 0)
        search = vramplan.suggest(MODEL, GPU, sequence_length=longest, global_batch=64)
        assert search.recommended is not None
        count = search.recommended.micro_batch_size
        tokens = count * longest
        ways: dict[str, tuple[Callable[[int], Steps], Cost]] = {
            "fixed number": (partial(by_number, sizes, count, tokens), padded_tokens),
            "fixed number, group_by_length": (partial(by_length, sizes, count, tokens), padded_tokens),
            "token budget": (partial(budget, sizes, tokens, pad_to_multiple_of=ROUNDED), padded_tokens),
            "token budget, window 4": (
                partial(budget, sizes, tokens, pad_to_multiple_of=ROUNDED, window=4),
                padded_tokens,
            ),
            "token budget, padding-free": (partial(budget, sizes, tokens, padding_free=True), packed_tokens),
        }
        results["kinds"][kind] = {
            "samples_per_micro_batch": count,
            "budget": tokens,
            "ways": {name: figures(sizes, way, cost) for name, (way, cost) in ways.items()},
            "packing": packing(sizes, tokens),
        }
    return results


def packing(sizes: Sequence[int], tokens: int) -> dict[str, int]:
    """Padding-free micro-batches that a window of 1,000 samples becomes by several rules, and the fewest thinkable."""
    window = sizes[:1000]
    ordered = sorted(range(len(window)), key=lambda sample: -window[sample])
    return {
        "sum / budget": -(-sum(window) // tokens),
        "best-fit decreasing": len(best_fit(ordered, window, tokens, len(window))),
        "first-fit decreasing": len(first_fit(window, ordered, tokens)),
        "sorted, cut when full": len(next_fit(window, ordered, tokens)),
        "as they come, cut when full": len(next_fit(window, range(len(window)), tokens)),
    }


def first_fit(sizes: Sequence[int], order: Sequence[int], tokens: int) -> list[int]:
    """Tokens of the micro-batches, each sample in the first that has room."""
    sums: list[int] = []
    for sample in order:
        place = next((number for number, total in enumerate(sums) if total + sizes[sample] <= tokens), None)
        if place is None:
            sums.append(sizes[sample])
        else:
            sums[place] += sizes[sample]
    return sums


def next_fit(sizes: Sequence[int], order: Sequence[int], tokens: int) -> list[int]:
    """Tokens of the micro-batches, a new one as soon as a sample does not fit."""
    sums = [0]
    for sample in order:
        if sums[-1] + sizes[sample] > tokens:
            sums.append(0)
        sums[-1] += sizes[sample]
    return sums


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.token_batches", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--write", action="store_true", help="keep the results and the picture in the repository")
    options = parser.parse_args()
    results = measure()
    print(table(results))
    for kind, result in results["kinds"].items():
        print(kind, *(f"{name}: {count}" for name, count in result["packing"].items()), sep="; ")
    if options.write:
        KEPT.write_text(json.dumps(results, indent=2) + "\n")
        draw(results, PICTURE)


if __name__ == "__main__":
    main()
