"""Samples of one optimizer step as micro-batches: few, even ones with little padding.

A micro-batch that is padded costs samples x longest, one without padding the sum of its lengths.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from vramplan.dataclass import dataclass

MicroBatch = list[int]
"""Indices of samples, the longest first."""
MICRO_BATCH_OVERHEAD = 256
"""What a micro-batch costs besides its tokens, in tokens: launches, and reading the weights.

vramplan estimates for a 7B model with LoRA on an A100 that a micro-batch of 128 tokens takes as long as 400 tokens of a
large one, and one of 512 as long as 640. It is more where FSDP or ZeRO-3 gathers weights for every micro-batch.
"""
Packer = Callable[[int], list[MicroBatch]]
"""Tokens that a micro-batch may have -> the micro-batches."""


@dataclass(frozen=True)
class Limits:
    """What a micro-batch may hold."""

    max_tokens: int
    padding_free: bool = False
    pad_to_multiple_of: int = 1
    max_samples: int | None = None
    micro_batch_overhead: int = MICRO_BATCH_OVERHEAD
    longest_sample: int | None = None
    """A sample with more tokens shares its micro-batch with none; those that ``max_tokens`` allows, if None."""

    def tokens(self, lengths: Sequence[int]) -> int:
        """Tokens, padding included, of a micro-batch of these lengths.

        >>> Limits(100, pad_to_multiple_of=8).tokens([10, 5])
        32
        >>> Limits(100, padding_free=True).tokens([10, 5])
        15
        """
        if not lengths:
            return 0
        if self.padding_free:
            return self.rounded(sum(lengths))
        return len(lengths) * self.rounded(max(lengths))

    def rounded(self, tokens: int) -> int:
        """Tokens up to the next multiple that the collator pads to."""
        return -(-tokens // self.pad_to_multiple_of) * self.pad_to_multiple_of

    def alone(self, length: int) -> bool:
        """Whether a sample is longer than those that share a micro-batch."""
        return self.rounded(length) > self.max_tokens or length > (self.longest_sample or length)

    def packer(self, samples: Sequence[int], lengths: Sequence[int]) -> Packer:
        """The way to pack these samples, which are sorted by falling length."""
        most = self.max_samples or len(samples)
        if self.padding_free:
            return lambda tokens: best_fit(
                samples, lengths, tokens // self.pad_to_multiple_of * self.pad_to_multiple_of, most
            )
        return lambda tokens: sorted_chunks(samples, lengths, tokens, most, self.rounded)


def sorted_chunks(
    samples: Sequence[int], lengths: Sequence[int], tokens: int, most: int, rounded: Callable[[int], int]
) -> list[MicroBatch]:
    """Chunks of samples that are sorted by falling length: each as large as its longest sample allows.

    No other way needs fewer chunks: the longest sample decides how many fit beside it, and the next longest are the
    dearest to leave for later.

    >>> sorted_chunks([0, 1, 2, 3], [9, 5, 4, 1], 10, 4, lambda tokens: tokens)
    [[0], [1, 2], [3]]
    """
    chunks, start = [], 0
    while start < len(samples):
        size = max(1, min(most, tokens // rounded(lengths[samples[start]])))
        chunks.append(list(samples[start : start + size]))
        start += size
    return chunks


def best_fit(samples: Sequence[int], lengths: Sequence[int], tokens: int, most: int) -> list[MicroBatch]:
    """Best-fit decreasing: each sample goes where the least room is left after it.

    At most 11/9 of the fewest possible, plus 4 (Johnson, "Near-optimal bin packing algorithms", 1973, without a limit
    of samples), and a search by bisection where first-fit looks at every micro-batch.

    >>> best_fit([0, 1, 2, 3], [9, 5, 4, 1], 10, 4)
    [[0, 3], [1, 2]]
    """
    batches: list[MicroBatch] = []
    open_batches: list[tuple[int, int]] = []  # room and number of those that take more, by rising room
    for sample in samples:
        length = lengths[sample]
        position = bisect_left(open_batches, (length, -1))
        if position < len(open_batches):
            room, number = open_batches.pop(position)
        else:
            room, number = tokens, len(batches)
            batches.append([])
        batches[number].append(sample)
        if len(batches[number]) < most and room > length:
            insort(open_batches, (room - length, number))
    return batches


def micro_batches(
    samples: Sequence[int], lengths: Sequence[int], limits: Limits, multiple: int = 1, least: int = 1
) -> list[MicroBatch]:
    """Micro-batches of these samples, the dearest first; their number is a multiple of ``multiple``.

    As few as fit, at least ``least``, without padding; padded ones are two, three, four times as many as long as the
    padding that this saves is more than what the added micro-batches cost. For each number the smallest limit of
    tokens that gives it is searched, which makes them even (MULTIFIT: Coffman, Garey and Johnson, SIAM J. Comput. 7,
    1978). Where there are fewer samples than micro-batches the last ones are empty.
    """
    ordered = sorted(samples, key=lambda sample: -lengths[sample])  # stable: a shuffled order stays shuffled
    alone = [[sample] for sample in ordered if limits.alone(lengths[sample])]
    ordered = ordered[len(alone) :]
    pack = limits.packer(ordered, lengths)
    batches = pack(limits.max_tokens) if ordered else []
    fewest = count = -(-max(len(alone) + len(batches), least) // multiple) * multiple

    def arranged(count: int) -> list[MicroBatch]:
        most = limits.max_tokens
        even = _even(pack, count - len(alone), limits.rounded(lengths[ordered[0]]), most) if ordered else []
        return _split(alone + even, count, limits, lengths)

    batches = arranged(count)
    while not limits.padding_free and count + fewest <= len(samples):
        more = arranged(count + fewest)
        if _cost(more, limits, lengths) >= _cost(batches, limits, lengths):
            break
        batches, count = more, count + fewest
    return batches + [[] for _ in range(count - len(batches))]


def _cost(batches: list[MicroBatch], limits: Limits, lengths: Sequence[int]) -> int:
    """Tokens that are computed, and those that the micro-batches cost besides."""
    tokens = sum(limits.tokens([lengths[sample] for sample in batch]) for batch in batches)
    return tokens + limits.micro_batch_overhead * len(batches)


def _even(pack: Packer, count: int, low: int, high: int) -> list[MicroBatch]:
    """At most ``count`` micro-batches under the smallest limit between two that bisection finds."""
    batches = pack(high)
    while low < high:
        middle = (low + high) // 2
        tried = pack(middle)
        if len(tried) <= count:
            batches, high = tried, middle
        else:
            low = middle + 1
    return batches


def _split(batches: list[MicroBatch], count: int, limits: Limits, lengths: Sequence[int]) -> list[MicroBatch]:
    """The dearest micro-batches in two, until there are ``count`` or none has two samples; the dearest first."""

    def tokens(batch: MicroBatch) -> int:
        return limits.tokens([lengths[sample] for sample in batch])

    batches = sorted(batches, key=tokens, reverse=True)
    while len(batches) < count:
        number = next((number for number, batch in enumerate(batches) if len(batch) > 1), None)
        if number is None:
            break
        batch = batches.pop(number)
        half = (len(batch) + 1) // 2
        for part in (batch[::2], batch[1::2]) if limits.padding_free else (batch[:half], batch[half:]):
            insort(batches, part, key=lambda batch: -tokens(batch))
    return batches
