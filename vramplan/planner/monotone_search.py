"""The largest micro-batch that fits: one search for every answer, so that a plan and a table agree."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.inputs.job import MAX_COUNT

MOST = 1 << 20
"""Larger micro-batches are not looked at."""
LENGTH_STEP = 64
"""Tokens that a length which is looked for is a multiple of."""


def most_by_tensors(low: int, high: int | None, least: Callable[[int], int], room: int) -> int:
    """The largest micro-batch from `low` on whose tensors alone fit into `room`; `low` does, no answer is `high`.

    What tensors take never falls as the micro-batch grows, and does so in straight lines with few kinks. Guesses lie on
    a line through what is known; every third halves what is left.
    """
    if high is not None and (high == low + 1 or least(high) <= room):
        return high - 1
    tries, stride = 0, low
    while high is None:
        guess = min(low + stride, MOST)
        if least(guess) <= room:
            slope = (least(guess) - least(low)) / (guess - low) if guess > low else 0.0
            low = guess
            if low == MOST:
                return low
            stride = max(2 * stride, int((room - least(low)) / slope) + 1) if slope > 0 else 2 * stride
        else:
            high = guess
    while high - low > 1:
        tries += 1
        if tries % 3:
            guess = low + int((room - least(low)) * (high - low) / max(1, least(high) - least(low)))
            guess = max(low + 1, min(guess, high - 1))
        else:
            guess = (low + high) // 2
        if least(guess) <= room:
            low = guess
        else:
            high = guess
    return low


def largest_batch(low: int, top: int, fits: Callable[[int], bool]) -> int:
    """The largest micro-batch that fits after fragmentation, from what tensors allow (`top`) down to `low`, which fits.

    Steps down double until one fits; what lies between is halved. A micro-batch may fit where a slightly smaller one
    does not, which the order of these guesses decides: it is the same for every answer.
    """
    high, stride = top + 1, 1
    while high - 1 > low:
        guess = max(low, high - stride)
        if guess == low or fits(guess):
            low = guess
            break
        high, stride = guess, 2 * stride
    while high - low > 1:
        guess = (low + high) // 2
        low, high = (guess, high) if fits(guess) else (low, guess)
    return low


def largest(start: int, fits: Callable[[int], bool], most_runs: int, highest: int = MAX_COUNT) -> tuple[int, bool]:
    """The largest number from 1 to `highest` that fits, and whether that is settled; `fits` must not rise again.

    Steps away from `start` double until the answer changes, then halve. A good start takes two runs.

    >>> largest(10, lambda n: n <= 11, 8)
    (11, True)
    """
    good, bad = 0, highest + 1
    guess, stride = min(max(1, start), highest), 1
    for _ in range(most_runs):
        if bad - good <= 1:
            break
        if fits(guess):
            good = guess
        else:
            bad = guess
        if good and bad <= highest:
            guess = (good + bad) // 2
        else:
            guess = min(highest, good + stride) if good else max(1, bad - stride)
            stride *= 2
    return good, bad - good <= 1
