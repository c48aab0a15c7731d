"""The samples of each optimizer step, whatever the batch: no sample is lost or repeated when it changes.

An epoch is a fixed order of samples, and the loader a position in it. A step takes the next samples of the global
batch; micro-batch j of it goes to rank j modulo the ranks, as accelerate's BatchSamplerShard deals them. The workers
of torch's DataLoader read ahead at the present batch; when it changes, what they had read ahead is dropped and read
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from vramplan.adaptive.controller import Controller
from vramplan.adaptive.rung import Rung
from vramplan.adaptive.step_shares import rest_of_epoch, shares
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnsupportedError, setting

Order = Callable[[int], Sequence[int]]
"""Epoch -> the order of its samples."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples of one forward on this rank."""

    indices: tuple[int, ...]
    batch: Any
    """What the collator made of them."""


@dataclass(frozen=True, slots=True)
class Step:
    """This rank's part of an optimizer step."""

    micro_batches: tuple[MicroBatch, ...]
    """None, where the last step of an epoch has fewer samples than there are ranks."""
    samples: int
    """Of all ranks."""
    base_steps: int
    """Steps of the base batch that these samples are worth: by so many the schedule of the learning rate moves on."""
    is_last: bool
    """Whether it is the last step of the run."""


class StepLoader:
    """Gives steps of whatever batch the controller is on.

    The last step of an epoch has what is left. Epochs and the schedule are counted in samples: a run has as many
    samples as one that stays on the base batch for `epochs`, or for `max_steps`.

    Args:
        dataset: With ``__len__`` and ``__getitem__``.
        controller: Its present rung is the batch.
        collate_fn: Samples to a batch; None: torch's.
        epochs: How often the samples are seen; a part of an epoch is rounded up to a step of the base batch.
        max_steps: Optimizer steps of the base batch, instead of epochs.
        seed, shuffle: The order of an epoch; not used if `order` is given.
        order: Epoch -> the order of its samples.
        drop_last: Leave out the last samples of an epoch that do not fill a step of the base batch.
        rank, world_size: This process among those that share a step.
        options: Of torch's DataLoader: num_workers, pin_memory, prefetch_factor ...

    Raises:
        ConfigError: for an empty data set, or other impossible settings.
        UnsupportedError: for a data set without numbered samples.
    """

    def __init__(
        self,
        dataset: Any,
        controller: Controller,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        epochs: float = 1,
        max_steps: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        order: Order | None = None,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        **options: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise UnsupportedError("an iterable data set: samples are needed by number, to give each exactly once")
        if controller.rung.num_gpus != world_size:
            raise ConfigError(f"the ladder is for {controller.rung.num_gpus} GPUs, and {world_size} processes run")
        self.dataset, self.controller, self.collate = dataset, controller, collate_fn or default_collate
        self.base_batch = controller.base_batch
        self.steps_in_epoch = len(dataset) // self.base_batch if drop_last else ceil(len(dataset) / self.base_batch)
        if not self.steps_in_epoch:
            raise ConfigError(f"the data set has {len(dataset)} samples: none for a step of {self.base_batch}")
        self.samples_in_epoch = self.steps_in_epoch * self.base_batch if drop_last else len(dataset)
        self.base_steps = ceil(epochs * self.steps_in_epoch) if max_steps is None else max_steps
        if self.base_steps < 1:
            raise ConfigError(f"{setting('epochs', epochs)}: no step to take")
        self.rank, self.world_size = rank, world_size
        self._order_of = order or (shuffled(len(dataset), seed) if shuffle else lambda epoch: range(len(dataset)))
        self.epoch = self.position = 0
        """Samples of the epoch that are given out."""
        self._worker_seed: int | None = None
        self._order: tuple[int, Sequence[int]] | None = None
        self._read_ahead: tuple[Rung, Iterator[Any]] | None = None
        self._generator = torch.Generator()
        # nothing that the DataLoader's iterator holds refers to this object: workers of an iterator that is freed in a
        # cycle end after a timeout of 5 seconds each
        self._plan = _Plan()
        self._loader: DataLoader[Any] = DataLoader(
            dataset, batch_sampler=self._plan, collate_fn=self.collate, generator=self._generator, **options
        )

    def __len__(self) -> int:
        """Steps of an epoch at the base batch."""
        return self.steps_in_epoch

    def __iter__(self) -> Iterator[Step]:
        """The steps that are left of this epoch."""
        self._begin()
        while (step := self._next()) is not None:
            yield step

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless it is the present one."""
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0
            self._worker_seed = self._read_ahead = None

    @property
    def is_at_end(self) -> bool:
        """Whether all samples of the epoch are given out."""
        return self.position >= self._limit

    @property
    def is_finished(self) -> bool:
        """Whether all samples of the run are given out."""
        return self.is_at_end and (self.epoch + 1) * self.steps_in_epoch >= self.base_steps

    @property
    def epochs_seen(self) -> float:
        """Epochs that are given out, with the part of the present one."""
        return self.epoch + self.position / self.samples_in_epoch

    def cut_again(self, indices: Sequence[int], micro_batch_size: int) -> list[MicroBatch]:
        """Samples read once more, in smaller micro-batches, in this process."""
        parts = [tuple(indices[at : at + micro_batch_size]) for at in range(0, len(indices), micro_batch_size)]
        read = getattr(self.dataset, "__getitems__", None) or (lambda part: [self.dataset[index] for index in part])
        return [MicroBatch(part, self.collate(read(list(part)))) for part in parts]

    def state_dict(self) -> dict[str, Any]:
        """The position between two steps, as JSON has it. It holds for any number of processes and workers."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "dataset_samples": len(self.dataset),
            "first_samples": self._first_samples(),
            "worker_seed": self._worker_seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a saved position.

        Raises:
            ConfigError: if the data set has another length, or the epoch another order.
        """
        if state["dataset_samples"] != len(self.dataset):
            raise ConfigError(
                f"the saved position is one of {state['dataset_samples']} samples, and the data set has"
                f" {len(self.dataset)}"
            )
        self.epoch, self.position, self._worker_seed = state["epoch"], state["position"], state["worker_seed"]
        self._read_ahead = None
        if state["first_samples"] != self._first_samples():
            raise ConfigError("the saved position is one of another order of the samples: the seed must be the same")

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _limit(self) -> int:
        """Samples of the present epoch that belong to the run."""
        left = self.base_steps - self.epoch * self.steps_in_epoch
        return max(0, min(self.samples_in_epoch, left * self.base_batch))

    def _present_order(self) -> Sequence[int]:
        if self._order is None or self._order[0] != self.epoch:
            self._order = (self.epoch, self._order_of(self.epoch))
        return self._order[1]

    def _first_samples(self) -> list[int]:
        """Enough of the epoch's order to tell it from another."""
        return list(self._present_order()[:8])

    def _begin(self) -> None:
        if self._worker_seed is None:  # once an epoch, one number from torch's generator, as DataLoader takes it
            self._worker_seed = int(torch.empty((), dtype=torch.int64).random_().item())

    def _next(self) -> Step | None:
        rung, start = self.controller.rung, self.position
        stop = min(start + rung.global_batch_size, self._limit)
        if stop <= start:
            return None
        order = self._present_order()
        if self._read_ahead is None or self._read_ahead[0] != rung:
            assert self._worker_seed is not None
            self._generator.manual_seed(self._worker_seed)
            self._read_ahead = None  # ends the workers before others begin
            self._plan.left = rest_of_epoch(order, start, self._limit, rung, self.rank, self.world_size)
            self._read_ahead = (rung, iter(self._loader))
        spans = shares(stop - start, rung.micro_batch_size, self.rank, self.world_size)
        micro_batches = tuple(
            MicroBatch(tuple(order[start + first : start + last]), next(self._read_ahead[1])) for first, last in spans
        )
        self.position = stop
        if self.is_at_end:
            self._read_ahead = None  # ends the workers
        base_steps = ceil(stop / self.base_batch) - ceil(start / self.base_batch)
        return Step(micro_batches, stop - start, base_steps, self.is_finished)


class _Plan:
    """The batch sampler of torch's DataLoader: a rank's micro-batches that are left of an epoch."""

    left: Iterator[list[int]] = iter(())

    def __iter__(self) -> Iterator[list[int]]:
        return self.left


def shuffled(samples: int, seed: int) -> Order:
    """A new order for each epoch, from a seed."""

    def order(epoch: int) -> Sequence[int]:
        numbers: list[int] = torch.randperm(samples, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        return numbers

    return order
