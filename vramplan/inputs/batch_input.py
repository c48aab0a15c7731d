"""One tensor of the batches that a model is called with."""

from __future__ import annotations

from math import prod
from typing import NamedTuple


class Input(NamedTuple):
    """An input of the model; `shape` is that of one sample."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "int64"
    stacked: bool = True
    """Whether a batch has a dimension more; otherwise samples lie one after another along the first dimension."""
    values: tuple[int, ...] = ()
    """Its elements, if the model's code reads them."""

    @property
    def num_elements(self) -> int:
        """Elements in one sample."""
        return prod(self.shape)

    def of_rows(self, rows: int) -> Input:
        """The same input of samples that are so many rows of a batch each."""
        return self if rows == 1 else self._replace(shape=(rows, *self.shape), stacked=False)

    def batched(self, samples: int) -> tuple[int, ...]:
        """Shape of a batch."""
        return (samples, *self.shape) if self.stacked else (samples * self.shape[0], *self.shape[1:])
