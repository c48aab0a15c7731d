"""A sampler whose micro-batches stay within a budget of tokens and whose optimizer steps have about as many tokens."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import chain, pairwise
from typing import Any

from vramplan.batching.checked import limited, longest_allowed, position, token_lengths, whole
from vramplan.batching.epoch_summary import EpochSummary
from vramplan.batching.packing import MICRO_BATCH_OVERHEAD, Limits, MicroBatch, micro_batches
from vramplan.batching.steps import bounds, number_of_steps, shuffled
from vramplan.errors import ConfigError, setting

Step = list[MicroBatch]
"""The micro-batches of one optimizer step."""


class TokenBudgetSampler:
    """Optimizer steps of micro-batches, for one GPU of several.

    Iterating gives one optimizer step after the other, each a list of micro-batches, each a list of indices.
    :class:`vramplan.batching.torch_loader.StepLoader` makes a DataLoader of it.

    Every sample comes exactly once per epoch. Samples are shuffled and cut into steps of about ``global_tokens`` real
    tokens; the number of steps is the same in every epoch. Inside a step, where order has no effect on the gradient,
    samples are sorted by length and become few micro-batches with little padding: their number, which is the
    accumulation, changes from step to step. It is a multiple of ``divisible_by``, so every GPU has as many. GPUs whose
    number divides ``divisible_by`` share the same micro-batches in the same steps: a run on 4 GPUs and one on 2 with
    ``divisible_by=4`` compute the same gradients.

    Args:
        lengths: tokens of each sample, as the collator gives them.
        max_tokens: of one micro-batch on one GPU, padding included.
        global_tokens: real tokens of an optimizer step over all GPUs, about.
        padding_free: samples are joined without padding: the sum of the lengths counts, not samples x longest.
        pad_to_multiple_of: as the collator's.
        max_samples: of a micro-batch.
        longest_sample: tokens of the longest sample that fits alone, if fewer than ``max_tokens``.
        longer: what happens to a longer sample: ``"refuse"``; ``"truncate"``, which the collator does and which the
            sampler counts; ``"alone"``, in a micro-batch of its own beyond the budget.
        num_replicas: GPUs that share the data.
        rank: of this one, from 0.
        seed: of the order.
        window: optimizer steps whose samples are sorted together. More than 1 saves padding where a step has few
            samples; the samples of a step are then no longer drawn independently of their lengths.
        divisible_by: the number of micro-batches of a step is a multiple of it; the number of GPUs by default.
        micro_batch_overhead: what a micro-batch costs besides its tokens, in tokens: padded micro-batches are more
            than the fewest if that saves more padding than it costs. A huge number keeps the fewest.

    If fewer samples are left for the last step than it needs micro-batches, some are empty lists:
    :class:`~vramplan.batching.torch_loader.StepLoader` fills them with a sample whose labels are ignored.

    Raises:
        ConfigError: a setting or a length is impossible, or a sample is too long.
    """

    def __init__(
        self,
        lengths: Iterable[Any],
        max_tokens: int,
        *,
        global_tokens: int,
        padding_free: bool = False,
        pad_to_multiple_of: int | None = None,
        max_samples: int | None = None,
        longest_sample: int | None = None,
        longer: str = "refuse",
        num_replicas: int = 1,
        rank: int = 0,
        seed: int = 0,
        window: int = 1,
        divisible_by: int | None = None,
        micro_batch_overhead: int = MICRO_BATCH_OVERHEAD,
    ) -> None:
        multiple = whole("pad_to_multiple_of", 1 if pad_to_multiple_of is None else pad_to_multiple_of)
        self.longest_sample = longest_allowed(longest_sample, whole("max_tokens", max_tokens), multiple)
        self.limits = Limits(
            max_tokens,
            padding_free,
            multiple,
            None if max_samples is None else whole("max_samples", max_samples),
            whole("micro_batch_overhead", micro_batch_overhead, 0),
            self.longest_sample,
        )
        self.lengths = limited(token_lengths(lengths), self.longest_sample, longer)
        self.longer = longer
        self.shortest = min(range(len(self.lengths)), key=self.lengths.__getitem__)
        self.num_replicas, self.rank = whole("num_replicas", num_replicas), whole("rank", rank, 0)
        self.divisible_by = self.num_replicas if divisible_by is None else whole("divisible_by", divisible_by)
        self.seed, self.window = whole("seed", seed, 0), whole("window", window)
        self.global_tokens = whole("global_tokens", global_tokens)
        self._check_ranks()
        self._count_steps()
        self.epoch = 0
        self.first_step = 0
        """Where the next iteration begins: 0, or where a saved state was."""
        self.steps_done = 0
        """Optimizer steps of this epoch that were given out."""

    def _check_ranks(self) -> None:
        if self.rank >= self.num_replicas:
            raise ConfigError(
                f"{setting('rank', self.rank)}: expected less than {setting('num_replicas', self.num_replicas)}"
            )
        if self.divisible_by % self.num_replicas:
            raise ConfigError(
                f"{setting('divisible_by', self.divisible_by)}: {setting('num_replicas', self.num_replicas)} does not "
                "divide it, so some GPUs would have fewer micro-batches than others"
            )
        if len(self.lengths) < self.divisible_by:
            raise ConfigError(
                f"{len(self.lengths)} samples are fewer than {setting('divisible_by', self.divisible_by)}: each GPU "
                "needs one in every optimizer step"
            )

    def _count_steps(self) -> None:
        self._steps = number_of_steps(sum(self.lengths), len(self.lengths), self.global_tokens, self.divisible_by)

    # -- iterating -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Optimizer steps of an epoch, the same in every epoch."""
        return self._steps

    def __iter__(self) -> Iterator[Step]:
        """The optimizer steps of this GPU; they begin where a loaded state was, else with the first."""
        first, self.first_step = self.first_step, 0
        self.steps_done = first
        for step in self.steps(self.epoch, first):
            self.steps_done += 1
            yield [micro_batch for row in step for micro_batch in row[self.rank :: self.num_replicas]]

    def steps(self, epoch: int, first: int = 0) -> Iterator[list[list[MicroBatch]]]:
        """Optimizer steps for all GPUs, from ``first`` on: rows of ``divisible_by`` micro-batches of similar cost.

        The micro-batches of a row run at the same time where there are as many GPUs, so that none waits long.
        """
        order = shuffled(len(self.lengths), self.seed, epoch)
        cuts = bounds([self.lengths[sample] for sample in order], self._steps, self.divisible_by)
        for start in range(first // self.window * self.window, self._steps, self.window):
            stop = min(start + self.window, self._steps)
            steps = self._window(order[cuts[start] : cuts[stop]], stop - start, self.seed, epoch, start)
            yield from steps[max(first - start, 0) :]

    def _window(self, samples: list[int], steps: int, *seed: int) -> list[list[list[MicroBatch]]]:
        """The samples of some optimizer steps, sorted by length together and dealt to the steps in random rows."""
        size = self.divisible_by
        batches = micro_batches(samples, self.lengths, self.limits, size, steps * size)
        rows = [batches[start : start + size] for start in range(0, len(batches), size)]
        if steps == 1:
            return [rows]
        order = shuffled(len(rows), *seed)
        cuts = bounds([self._tokens(chain(*rows[row])) for row in order], steps, 1)
        return [[rows[row] for row in sorted(order[start:stop])] for start, stop in pairwise(cuts)]

    def micro_batches(self) -> Iterator[MicroBatch]:
        """The micro-batches of this GPU without the borders of the steps, as a DataLoader's ``batch_sampler``.

        Raises:
            ConfigError: an empty one is among them, which needs a StepLoader.
        """
        for number, step in enumerate(self):
            for micro_batch in step:
                if not micro_batch:
                    raise ConfigError(
                        f"optimizer step {number}: no sample is left for rank {self.rank}; StepLoader fills such "
                        "micro-batches with a sample whose labels are ignored"
                    )
                yield micro_batch

    def set_epoch(self, epoch: int) -> None:
        """Choose the order; an epoch that a loaded state is in the middle of goes on where it was."""
        if whole("epoch", epoch, 0) != self.epoch:
            self.epoch, self.first_step, self.steps_done = epoch, 0, 0

    # -- what it does --------------------------------------------------------------------------------------------------

    def tokens(self, micro_batch: Iterable[int]) -> int:
        """Tokens of a micro-batch, padding included."""
        return self.limits.tokens([self.lengths[sample] for sample in micro_batch])

    def _tokens(self, samples: Iterable[int]) -> int:
        """Real tokens."""
        return sum(self.lengths[sample] for sample in samples)

    def summary(self, epoch: int | None = None) -> EpochSummary:
        """What an epoch does, over all GPUs; this one's by default."""
        steps = [list(chain(*step)) for step in self.steps(self.epoch if epoch is None else epoch)]
        real = [self._tokens(chain(*step)) for step in steps]
        padded = [self.tokens(micro_batch) for step in steps for micro_batch in step]
        return EpochSummary(len(steps), len(padded), sum(real), sum(padded), max(padded), min(real), max(real))

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch is and what decides its steps, as plain values for JSON or ``torch.save``.

        The step that was given out last counts as done.
        """
        return {
            "epoch": self.epoch,
            "steps_done": self.steps_done,
            "divisible_by": self.divisible_by,
            "settings": self._settings(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a saved state was, also on another number of GPUs if it divides the saved ``divisible_by``.

        Raises:
            ConfigError: the steps would have other samples, or it is not such a state.
        """
        epoch, step, multiple = position(state, self._settings())
        if multiple % self.num_replicas:
            raise ConfigError(
                f"the saved state has {setting('divisible_by', multiple)}, which "
                f"{setting('num_replicas', self.num_replicas)} does not divide: its optimizer steps would change; go "
                f"on with a number of GPUs that divides {multiple}"
            )
        self.divisible_by = multiple
        self._count_steps()
        if step > self._steps:
            raise ConfigError(f"the saved state has {step} steps done, the epoch has {self._steps}")
        self.epoch, self.first_step, self.steps_done = epoch, step, step

    def _settings(self) -> dict[str, Any]:
        """Everything but the number of GPUs that decides which samples a step has."""
        limits = self.limits
        return {
            "samples": len(self.lengths),
            "lengths": sha256(array("q", self.lengths).tobytes()).hexdigest(),
            "max_tokens": limits.max_tokens,
            "global_tokens": self.global_tokens,
            "padding_free": limits.padding_free,
            "pad_to_multiple_of": limits.pad_to_multiple_of,
            "max_samples": limits.max_samples,
            "micro_batch_overhead": limits.micro_batch_overhead,
            "longest_sample": self.longest_sample,
            "longer": self.longer,
            "seed": self.seed,
            "window": self.window,
        }
