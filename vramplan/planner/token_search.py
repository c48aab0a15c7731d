"""The search for the most tokens of a micro-batch, whatever the shapes and the order of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from itertools import count

from vramplan.analytic.architectures.lookup import architecture_of, is_described
from vramplan.analytic.estimator import begin
from vramplan.analytic.mixed_batches import BatchShape
from vramplan.errors import UnsupportedError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job, with_batch
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.calibration import plannable_bytes
from vramplan.memory.estimate import Estimate, PartialEstimate
from vramplan.planner.mixed_runs import MixedRuns, in_turn
from vramplan.planner.monotone_search import LENGTH_STEP, MAX_MICRO_BATCH, bisect_largest, largest_by_tensors
from vramplan.units import ceil_div

SHORTEST = 32
"""Tokens of the shortest samples that a padded batch is checked with."""
SHAPES = 16
"""Different shapes of the micro-batches in a run of mixed shapes, about."""
MICRO_BATCHES = 48
"""Micro-batches of such a run."""
NUM_RUNS = {True: 3, False: 16}
"""Such runs, with expandable segments and without: without them it depends on the order what fits."""
HUNDRED = 100
"""Budgets are lowered by hundredths."""
LEAST = 40
"""The least share, in hundredths, that a budget of equal micro-batches is lowered to for those of mixed shapes."""


class TokenSearch:
    """The search for one job, whose batches are padded or packed."""

    def __init__(self, spec: ModelSpec, job: Job, gpu: Gpu, progress: Callable[[str], None]) -> None:
        if not is_described(spec):
            raise UnsupportedError(f"token budgets are for models that need no trace; {spec.name} does")
        architecture, config, *_ = architecture_of(spec)
        shape = architecture.shape(config)
        self.most_positions = shape.positions if shape.hard_limit else None
        self.spec, self.gpu, self.progress = spec, gpu, progress
        self.job = with_batch(job, 1, 2)  # the gradients of an earlier micro-batch are in memory
        self.room = plannable_bytes(job, gpu)
        self.estimate = cache(self._estimate)
        self.tensor_bytes = cache(self._tensor_bytes)
        self.begun = lru_cache(maxsize=4)(self._begun)  # an estimate follows the bound of the same shape

    def longest_sample(self) -> int:
        """Tokens of the longest sample that fits in a micro-batch of its own; 0 if none does."""
        return self._longest(1, self.most_positions)

    def tokens(self, longest: int) -> int:
        """The most tokens with samples of at most `longest`, which fit alone; 0 if runs of mixed shapes do not."""
        tokens = self._of_all_shapes(longest) if self.job.batches == "padded" else self._longest(1, None)
        return self._of_mixed_shapes(tokens, longest)

    def fullest(self, tokens: int, longest: int) -> BatchShape:
        """The shape of a full micro-batch that needs most memory."""
        return max(full_shapes(self.job, tokens, longest), key=lambda shape: self.estimate(shape).peak_allocated_bytes)

    def _estimate(self, shape: BatchShape) -> Estimate:
        self.progress(f"{shape.samples:,} × {shape.length:,} tokens")
        return self.begun(shape).complete()

    def _tensor_bytes(self, shape: BatchShape) -> int:
        return self.begun(shape).lower_bound_bytes

    def _begun(self, shape: BatchShape) -> PartialEstimate:
        job = self.job.model_copy(update={"micro_batch_size": shape.samples, "sequence_length": shape.length})
        return begin(self.spec, job, self.gpu)

    def _longest(self, samples: int, limit: int | None) -> int:
        """Tokens, at most `limit`, of the longest that fit in a micro-batch of so many samples; 0 if none do."""
        step = max(1, LENGTH_STEP // samples)  # as fine in tokens for many short samples as for a long one

        def shape(index: int) -> BatchShape:
            length = index * step
            return BatchShape(samples, length if limit is None else min(length, limit))

        def tensor_bytes(index: int) -> int:
            return self.tensor_bytes(shape(index))

        if tensor_bytes(1) > self.room:
            return 0
        top = highest = None if limit is None else ceil_div(limit, step)
        if top is None or tensor_bytes(top) > self.room:
            top = largest_by_tensors(1, highest, tensor_bytes, self.room)
        if not self.estimate(shape(top)).fits:
            first = max(1, int(0.98 * top))
            top = bisect_largest(0, top, lambda index: self.estimate(shape(index)).fits, first=first)
        return shape(top).length if top else 0

    def _of_all_shapes(self, longest: int) -> int:
        """Tokens with which every number of samples fits, each as long as they may then be."""
        counts, most = _counts(), longest
        for samples in counts:
            most = self._longest(samples, longest)
            if most < longest or samples > MAX_MICRO_BATCH:
                break
        tokens = max(longest, samples * most)
        for samples in counts:
            if tokens // samples < SHORTEST:
                break

            def fits(share: int, samples: int = samples, tokens: int = tokens) -> bool:
                return self.estimate(BatchShape(samples, tokens * share // HUNDRED // samples)).fits

            if not fits(HUNDRED):
                tokens = max(longest, tokens * bisect_largest(0, HUNDRED, fits, first=HUNDRED - 1) // HUNDRED)
        return tokens

    def _of_mixed_shapes(self, tokens: int, longest: int) -> int:
        """Tokens with which runs of micro-batches of mixed shapes do not run out of memory; 0 if there are none."""
        runs = MixedRuns(self.spec, self.job, self.gpu)
        num_runs = NUM_RUNS[self.job.expandable_segments]

        def survives(share: int) -> bool:
            full = tokens * share // HUNDRED
            self.progress(f"runs of mixed lengths, {full:,} tokens")
            shapes = full_shapes(self.job, full, longest)
            return all(runs.survives(in_turn(shapes, seed, MICRO_BATCHES)) for seed in range(num_runs))

        if survives(HUNDRED):
            return tokens
        share = bisect_largest(LEAST, HUNDRED, survives, first=HUNDRED * 4 // 5, step=2)
        return tokens * share // HUNDRED if share > LEAST or survives(share) else 0


def full_shapes(job: Job, tokens: int, longest: int) -> list[BatchShape]:
    """Shapes of micro-batches that a budget of tokens fills.

    Lengths of padded samples are even on a logarithmic scale. Rows are full, or filled to three quarters and more.
    """
    longest = min(longest, tokens)
    if job.batches == "padded":
        shortest = min(SHORTEST, longest)
        ratio = (longest / shortest) ** (1 / (SHAPES - 1))
        lengths = dict.fromkeys(round(shortest * ratio**number) for number in range(SHAPES))
        return [BatchShape(tokens // length, length) for length in lengths]
    step = LENGTH_STEP << max(0, (tokens // (4 * SHAPES * LENGTH_STEP)).bit_length() - 1)
    rows = [tokens, *range(tokens // step * step, tokens * 3 // 4, -step)]
    return [BatchShape(1, length) for length in dict.fromkeys(rows)]


def _counts() -> Iterator[int]:
    """Numbers of samples that are tried: 1, 2, 3, 4, 6, 8, 12, 16, 24 ..."""
    yield 1
    for power in count(1):
        yield 2**power
        yield 3 * 2 ** (power - 1)
