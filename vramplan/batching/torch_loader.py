"""A DataLoader of the optimizer steps of a sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from vramplan.batching.packing import MicroBatch
from vramplan.batching.sampler import TokenBudgetSampler
from vramplan.errors import ConfigError, setting

IGNORED_LABEL = -100
"""The label that torch's and transformers' losses leave out."""
Collator = Callable[[list[Any]], Any]


class StepLoader(DataLoader):  # type: ignore[misc]
    """A DataLoader of optimizer steps: each is a list of collated micro-batches for this GPU.

    accelerate's ``prepare`` returns it as it is: the sampler has dealt the micro-batches to the GPUs already. What
    ``prepare`` does besides, moving tensors, is done with ``device``.

    Args:
        dataset: what the sampler's lengths belong to, with ``__getitem__``.
        sampler: the steps of this GPU.
        collate_fn: a list of samples -> a micro-batch, a mapping with ``input_ids`` and ``labels``.
        device: where the tensors of a step go when it is given out; None leaves them where they are.
        **options: of :class:`torch.utils.data.DataLoader`, such as ``num_workers``.

    Raises:
        ConfigError: the data set has another number of samples than the sampler; while iterating, that a micro-batch
            has more tokens than the sampler counted.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: TokenBudgetSampler,
        collate_fn: Collator,
        *,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> None:
        if len(dataset) != len(sampler.lengths):
            raise ConfigError(f"the data set has {len(dataset)} samples, the sampler {len(sampler.lengths)} lengths")
        super().__init__(
            _MicroBatches(dataset, sampler.shortest),
            batch_sampler=sampler,
            collate_fn=_Collated(sampler, collate_fn),
            **options,
        )
        self._sampler_of_steps, self._device = sampler, device
        self._steps_done = sampler.first_step
        self._is_accelerate_prepared = True  # accelerate's sign (1.15, accelerator.py) not to deal it out a second time

    def __iter__(self) -> Iterator[list[Any]]:
        self._steps_done = self._sampler_of_steps.first_step
        for step in super().__iter__():
            self._steps_done += 1
            yield step if self._device is None else [_moved(micro_batch, self._device) for micro_batch in step]

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self._sampler_of_steps.set_epoch(epoch)
        self._steps_done = self._sampler_of_steps.first_step

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state after the step that was given out last, whatever its workers have read ahead."""
        return {**self._sampler_of_steps.state_dict(), "steps_done": self._steps_done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a saved state was, as :meth:`~vramplan.batching.TokenBudgetSampler.load_state_dict` does."""
        self._sampler_of_steps.load_state_dict(state)
        self._steps_done = self._sampler_of_steps.first_step


class _MicroBatches(Dataset):  # type: ignore[misc]
    """A data set that is asked for lists of indices and has as many samples as the one inside."""

    def __init__(self, dataset: Any, stand_in: int) -> None:
        self.dataset, self.stand_in = dataset, stand_in

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, micro_batch: MicroBatch) -> tuple[MicroBatch, list[Any]]:
        """The samples of a micro-batch; an empty one has the shortest, whose labels are ignored later."""
        return micro_batch, [self.dataset[sample] for sample in micro_batch or [self.stand_in]]


class _Collated:
    """The micro-batches of a step, collated one by one and compared with what the sampler counted."""

    def __init__(self, sampler: TokenBudgetSampler, collate_fn: Collator) -> None:
        self._sampler, self._collate = sampler, collate_fn

    def __call__(self, step: Sequence[tuple[MicroBatch, list[Any]]]) -> list[Any]:
        return [self._micro_batch(indices, samples) for indices, samples in step]

    def _micro_batch(self, indices: MicroBatch, samples: list[Any]) -> Any:
        batch = self._collate(samples)
        counted = self._sampler.tokens(indices or [self._sampler.shortest])
        tokens = _tokens(batch)
        if tokens > counted:
            names = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
            raise ConfigError(
                f"samples {names}: {tokens:,} tokens after collation, {counted:,} by their lengths; give the lengths "
                f"after tokenization and truncation, {setting('padding_free')} and {setting('pad_to_multiple_of')} as "
                "the collator has them"
            )
        if not indices:
            batch["labels"] = torch.full_like(batch["labels"], IGNORED_LABEL)
        return batch


def _tokens(batch: Any) -> int:
    """Tokens of a collated micro-batch, padding included; 0 if it has no ``input_ids`` to count."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return ids.numel() if isinstance(ids, torch.Tensor) else 0


def _moved(value: Any, device: torch.device | str) -> Any:
    """Tensors of a mapping, a list or alone, on a device."""
    if torch.is_tensor(value):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, device) for item in value)
    return value
