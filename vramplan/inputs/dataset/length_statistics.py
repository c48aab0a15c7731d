"""Lengths of the samples of a data set, and the statistics of batches drawn from them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate, islice
from math import ceil
from pathlib import Path
from random import Random

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError
from vramplan.inputs.dataset.by_task import READER_BY_TASK, WHOLE
from vramplan.inputs.dataset.readers import rows
from vramplan.inputs.dataset.token_counts import TOKENS_PER_MESSAGE, TokenCounter
from vramplan.progress import Progress

ROWS_PER_CALL = 256
"""Rows passed to the tokenizer in one call."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token and image counts of every sample of a data set."""

    path: Path
    source: str
    """How the tokens were counted."""
    exact: bool
    counts: Mapping[tuple[int, int], int]
    """Number of samples by (tokens of text, images)."""
    texts: int = 1
    """Most texts of a sample, where texts are compared."""
    are_prompts: bool = False
    """Whether the tokens are those of prompts, whose completions are generated."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(self.counts.values())

    def distribution(self, image_tokens: int, completion: int = 0) -> LengthDistribution:
        """Samples by tokens of text and images together, each image of `image_tokens`, with a completion behind it."""
        return LengthDistribution.from_counts(
            (text + images * image_tokens + completion, images, count) for (text, images), count in self.counts.items()
        )


def measure(path: Path, counter: TokenCounter, progress: Progress, task: str | None = None) -> Lengths:
    """Lengths of all samples in a file, of the texts that a task has of them.

    Raises:
        ConfigError: naming the line that cannot be read.
    """
    counts: Counter[tuple[int, int]] = Counter()
    most = 1
    reader = READER_BY_TASK.get(task, WHOLE)
    samples = (reader.texts(row, f"{path}:{line}") for line, row in rows(path, progress))
    while chunk := list(islice(samples, ROWS_PER_CALL)):
        tokens = iter(counter.tokens_of([one.text for texts in chunk for one in texts]))
        for texts in chunk:
            longest = reader.longest([next(tokens) + one.messages * TOKENS_PER_MESSAGE for one in texts])
            counts[longest, max(one.images for one in texts)] += 1
        most = max(most, *map(len, chunk))
    return Lengths(path, counter.source, counter.exact, counts, most, reader.are_prompts)


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Number of samples by length in tokens."""

    lengths: tuple[int, ...]
    """Distinct lengths, ascending."""
    cumulative: tuple[int, ...]
    """Number of samples of at most each length."""
    max_images: int
    """Most images in one sample."""

    @classmethod
    def from_counts(cls, counts: Iterable[tuple[int, int, int]]) -> LengthDistribution:
        """The distribution of (length, images, samples) triples."""
        by_length: Counter[int] = Counter()
        max_images = 0
        for length, images, count in counts:
            by_length[length] += count
            max_images = max(max_images, images)
        lengths = sorted(by_length)
        return cls(tuple(lengths), tuple(accumulate(by_length[length] for length in lengths)), max_images)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.cumulative[-1]

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return self.lengths[-1]

    @property
    def tokens(self) -> int:
        """Tokens of all samples together."""
        return sum(length * count for length, count in self._pairs())

    def _pairs(self) -> Iterable[tuple[int, int]]:
        """(length, number of samples of exactly that length)."""
        counts = (now - before for before, now in zip((0, *self.cumulative), self.cumulative, strict=False))
        return zip(self.lengths, counts, strict=True)

    def quantile(self, share: float) -> int:
        """The length that this share of the samples does not exceed (nearest rank)."""
        return self.lengths[bisect_left(self.cumulative, max(1, ceil(share * self.samples)))]

    def sample_lengths(self, count: int) -> tuple[int, ...]:
        """Lengths of `count` randomly drawn samples; the same count gives the same lengths."""
        draws = Random(count)
        return tuple(self.quantile(draws.random()) for _ in range(count))

    def count_longer(self, length: int) -> int:
        """Number of samples with more than `length` tokens."""
        index = bisect_right(self.lengths, length)
        return self.samples - (self.cumulative[index - 1] if index else 0)

    def limit_to(self, limit: int, drops_longer: bool) -> LengthDistribution:
        """The distribution after longer samples were cut to `limit` tokens, or dropped.

        Raises:
            ConfigError: if every sample is dropped.
        """
        if self.longest <= limit:
            return self
        within = [(length, 0, count) for length, count in self._pairs() if length <= limit]
        if drops_longer and not within:
            raise ConfigError(
                f"every sample has more than {limit:,} tokens (the shortest {self.lengths[0]:,}): all are dropped"
            )
        counts = within if drops_longer else [*within, (limit, 0, self.count_longer(limit))]
        return replace(LengthDistribution.from_counts(counts), max_images=self.max_images)

    def expected_longest(self, samples: int) -> float:
        """Expected tokens of the longest of `samples` randomly drawn samples: the length a batch is padded to."""
        total = last = 0.0
        for length, count in zip(self.lengths, self.cumulative, strict=True):
            share = (count / self.samples) ** samples
            total, last = total + length * (share - last), share
        return total

    def share_reaching(self, length: int, samples: int) -> float:
        """Share of random batches of `samples` samples whose longest sample has at least `length` tokens."""
        index = bisect_left(self.lengths, length)
        return 1.0 - ((self.cumulative[index - 1] if index else 0) / self.samples) ** samples
