"""Which samples an optimizer step has: slices of a shuffled epoch with about the same tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate


def shuffled(count: int, *seed: int) -> list[int]:
    """A random order of ``range(count)``, the same in every version of Python.

    Only ``random()`` is promised to stay the same between versions, ``shuffle()`` is not.
    """
    draw = random.Random(" ".join(map(str, seed))).random
    keys = [draw() for _ in range(count)]
    return sorted(range(count), key=keys.__getitem__)


def number_of_steps(tokens: int, samples: int, global_tokens: int, multiple: int) -> int:
    """Optimizer steps of an epoch: the same in every epoch, as learning-rate schedules need it.

    Each has at least ``multiple`` samples.
    """
    return max(1, min(round(tokens / global_tokens), samples // multiple))


def bounds(tokens: Sequence[int], steps: int, multiple: int) -> list[int]:
    """Where to cut samples, whose tokens are given in order, so that each step has about as many tokens.

    All steps but the last have a multiple of ``multiple`` samples, so that as many micro-batches can always be made
    of them for every GPU. Returns ``steps + 1`` positions, from 0 to the number of samples.

    >>> bounds([5, 5, 1, 1, 1, 1, 1, 5], 2, 2)
    [0, 2, 8]
    """
    sums = [0, *accumulate(tokens)][::multiple]
    units = len(tokens) // multiple
    total = sum(tokens)
    cuts = [0]
    for step in range(1, steps):
        wanted = total * step / steps
        first, last = cuts[-1] + 1, units - (steps - step)
        cut = first
        while cut < last and abs(sums[cut + 1] - wanted) <= abs(sums[cut] - wanted):
            cut += 1
        cuts.append(cut)
    return [cut * multiple for cut in cuts] + [len(tokens)]
