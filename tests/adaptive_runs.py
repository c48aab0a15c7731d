"""Small models, data and controllers for runs whose batch changes, and a stand-in for the allocator's error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from vramplan.adaptive.controller import Controller
from vramplan.adaptive.coupling import Coupling
from vramplan.adaptive.policies.constant import Constant
from vramplan.adaptive.policies.schedule import Schedule
from vramplan.adaptive.rung import Rung

MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB."


def rungs(gpus: int = 1) -> tuple[Rung, ...]:
    """Global batches 4, 8 and 16, each with smaller micro-batches below it."""

    def rung(batch: int, micro: int) -> Rung:
        smaller = [size for size in (4, 2, 1) if size < micro]
        return Rung(
            micro,
            batch // micro // gpus,
            gpus,
            alternatives=tuple(Rung(size, batch // size // gpus, gpus) for size in smaller),
        )

    return rung(4, 2), rung(8, 4), rung(16, 4)


def constant(gpus: int = 1) -> Controller:
    return Controller(rungs(gpus), Constant())


def growing(gpus: int = 1, *points: tuple[int, int], coupling: Coupling = Coupling()) -> Controller:
    """Follows a plan: (samples, batch)."""
    return Controller(rungs(gpus), Schedule(points or ((0, 4), (12, 8), (28, 16))), coupling)


class Network(nn.Module):
    """Two layers with dropout, that keep the numbers of the samples they saw."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.drop, self.last = nn.Linear(6, 8), nn.Dropout(dropout), nn.Linear(8, 1)
        self.seen: list[list[int]] = []

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.seen.append(batch["number"].tolist())
        hidden = self.drop(torch.tanh(self.first(batch["x"])))
        return (self.last(hidden).squeeze(-1) - batch["y"]).square().mean()

    @property
    def samples(self) -> list[int]:
        return [number for batch in self.seen for number in batch]


def samples(count: int = 40) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    xs = torch.randn(count, 6, generator=generator)
    return [{"x": x, "y": x.sum().sin(), "number": torch.tensor(number)} for number, x in enumerate(xs)]


@contextmanager
def out_of_memory_above(module: nn.Module, most: int, times: int = 10**9) -> Iterator[list[int]]:
    """Raises the allocator's error in forwards of this module for more than `most` samples; yields their sizes."""
    failed: list[int] = []

    def limit(_: nn.Module, args: Any, kwargs: Any) -> None:
        batch = args[0] if args else kwargs["input_ids"]
        size = len(batch["x"] if isinstance(batch, dict) else batch)
        if size > most and len(failed) < times:
            failed.append(size)
            raise torch.OutOfMemoryError(MESSAGE)

    handle = module.register_forward_pre_hook(limit, with_kwargs=True)
    try:
        yield failed
    finally:
        handle.remove()


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, hidden: torch.Tensor, fails: bool) -> torch.Tensor:
        context.fails = fails
        return hidden.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if context.fails:
            raise torch.OutOfMemoryError(MESSAGE)
        return gradient, None


@contextmanager
def out_of_memory_in_backward(module: nn.Module, most: int) -> Iterator[list[int]]:
    """Raises it in the backward, after the layers behind this module have their gradients."""
    failed: list[int] = []

    def through(_: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        if len(output) > most:
            failed.append(len(output))
        return _Fails.apply(output, len(output) > most)

    handle = module.register_forward_hook(through)
    try:
        yield failed
    finally:
        handle.remove()


def same(first: nn.Module, second: nn.Module) -> bool:
    """Whether all weights have the same bits."""
    return all(torch.equal(one, two) for one, two in zip(first.parameters(), second.parameters(), strict=True))


def close(first: nn.Module, second: nn.Module, tolerance: float = 1e-5) -> bool:
    """Whether all weights are the same but for rounding."""
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.allclose(one, two, rtol=tolerance, atol=tolerance) for one, two in pairs)


def sizes(seen: Sequence[Sequence[int]]) -> list[int]:
    return [len(batch) for batch in seen]
