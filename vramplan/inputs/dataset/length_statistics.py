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
from vramplan.inputs.dataset.compared import labelled_text, texts_of, together
from vramplan.inputs.dataset.readers import rows
from vramplan.inputs.dataset.schemas import sample
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

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(self.counts.values())

    def distribution(self, image_tokens: int) -> LengthDistribution:
        """Samples by tokens of text and images together, with `image_tokens` tokens for each image."""
        return LengthDistribution.from_counts(
            (text + images * image_tokens, images, count) for (text, images), count in self.counts.items()
        )


def measure(path: Path, counter: TokenCounter, progress: Progress, labelled: bool = False) -> Lengths:
    """Lengths of all samples in a file; of `labelled` ones, which need no answer, all columns of texts count.

    Raises:
        ConfigError: naming the line that cannot be read.
    """
    counts: Counter[tuple[int, int]] = Counter()
    read = labelled_text if labelled else sample
    samples = (read(row, f"{path}:{line}") for line, row in rows(path, progress))
    while chunk := list(islice(samples, ROWS_PER_CALL)):
        for each, tokens in zip(chunk, counter.tokens_of([each.text for each in chunk]), strict=True):
            counts[tokens + each.messages * TOKENS_PER_MESSAGE, each.images] += 1
    return Lengths(path, counter.source, counter.exact, counts)


def measure_texts(path: Path, counter: TokenCounter, progress: Progress, task: str) -> Lengths:
    """Lengths of samples that are texts to compare.

    Args:
        path: the file.
        counter: how tokens are counted.
        progress: is told how far it is.
        task: embedding or reranker, which decides what lies in one row.

    Raises:
        ConfigError: naming the line that cannot be read.
    """
    counts: Counter[tuple[int, int]] = Counter()
    most = 1
    samples = (texts_of(row, f"{path}:{line}") for line, row in rows(path, progress))
    while chunk := list(islice(samples, ROWS_PER_CALL)):
        tokens = iter(counter.tokens_of([one.text for texts in chunk for one in texts]))
        for texts in chunk:
            counts[together(task, [next(tokens) + one.messages * TOKENS_PER_MESSAGE for one in texts]), 0] += 1
        most = max(most, *map(len, chunk))
    return Lengths(path, counter.source, counter.exact, counts, most)


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
