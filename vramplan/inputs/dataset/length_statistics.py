"""How long the samples of a data set are, and what that makes of a batch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice
from math import ceil
from pathlib import Path
from random import Random

from vramplan.errors import ConfigError
from vramplan.inputs.dataset.readers import rows
from vramplan.inputs.dataset.schemas import sample
from vramplan.inputs.dataset.token_counts import A_MESSAGE
from vramplan.inputs.dataset.token_counts import Counter as Tokens
from vramplan.progress import Progress

ROWS_AT_ONCE = 256
"""As many as a tokenizer is given together."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A data set, measured."""

    path: Path
    source: str
    """What the counts rest on."""
    exact: bool
    counts: Mapping[tuple[int, int], int]
    """Samples by (tokens of text, images)."""

    @property
    def samples(self) -> int:
        """All of them."""
        return sum(self.counts.values())

    def spread(self, image_tokens: int) -> LengthDistribution:
        """The samples by their whole length, where an image takes so many tokens."""
        return LengthDistribution.of(
            (text + images * image_tokens, images, count) for (text, images), count in self.counts.items()
        )


def measure(path: Path, tokens: Tokens, progress: Progress) -> Lengths:
    """The lengths of all samples in a file.

    Raises:
        ConfigError: naming the line of what cannot be read.
    """
    counts: Counter[tuple[int, int]] = Counter()
    read = (sample(row, f"{path}:{line}") for line, row in rows(path, progress))
    while some := list(islice(read, ROWS_AT_ONCE)):
        for one, length in zip(some, tokens.tokens_of([one.text for one in some]), strict=True):
            counts[length + one.messages * A_MESSAGE, one.images] += 1
    return Lengths(path, tokens.source, tokens.exact, counts)


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Samples by length."""

    lengths: tuple[int, ...]
    """Ascending, each once."""
    upto: tuple[int, ...]
    """Samples of at most that length."""
    images: int
    """Most in one sample."""

    @classmethod
    def of(cls, found: Iterable[tuple[int, int, int]]) -> LengthDistribution:
        """From (length, images, samples)."""
        by_length: Counter[int] = Counter()
        most = 0
        for length, images, count in found:
            by_length[length] += count
            most = max(most, images)
        lengths = sorted(by_length)
        return cls(tuple(lengths), tuple(accumulate(by_length[one] for one in lengths)), most)

    @property
    def samples(self) -> int:
        """All of them."""
        return self.upto[-1]

    @property
    def longest(self) -> int:
        """Tokens."""
        return self.lengths[-1]

    @property
    def tokens(self) -> int:
        """Of all samples together."""
        return sum(length * count for length, count in self._counted())

    def _counted(self) -> Iterable[tuple[int, int]]:
        each = (now - before for before, now in zip((0, *self.upto), self.upto, strict=False))
        return zip(self.lengths, each, strict=True)

    def quantile(self, share: float) -> int:
        """The length that this share of the samples does not exceed (nearest rank)."""
        return self.lengths[bisect_left(self.upto, max(1, ceil(share * self.samples)))]

    def drawn(self, count: int) -> tuple[int, ...]:
        """Lengths of samples drawn at random, the same each time."""
        draws = Random(count)
        return tuple(self.quantile(draws.random()) for _ in range(count))

    def longer(self, length: int) -> int:
        """Samples of more tokens than that."""
        at = bisect_right(self.lengths, length)
        return self.samples - (self.upto[at - 1] if at else 0)

    def limited(self, limit: int, drops: bool) -> LengthDistribution:
        """With a limit that longer samples are cut to, or dropped for.

        Raises:
            ConfigError: where none is left.
        """
        if self.longest <= limit:
            return self
        kept = [(length, 0, count) for length, count in self._counted() if length <= limit]
        if drops and not kept:
            raise ConfigError(
                f"every sample has more than {limit:,} tokens (the shortest {self.lengths[0]:,}): all are dropped"
            )
        made = LengthDistribution.of(kept if drops else [*kept, (limit, 0, self.longer(limit))])
        return LengthDistribution(made.lengths, made.upto, self.images)

    def expected_longest(self, samples: int) -> float:
        """Of the longest among so many drawn at random: what a batch is padded to."""
        total = last = 0.0
        for length, count in zip(self.lengths, self.upto, strict=True):
            share = (count / self.samples) ** samples
            total, last = total + length * (share - last), share
        return total

    def share_reaching(self, length: int, samples: int) -> float:
        """Share of batches of so many samples whose longest has at least that length."""
        at = bisect_left(self.lengths, length)
        return 1.0 - ((self.upto[at - 1] if at else 0) / self.samples) ** samples
