"""An optimizer's learning rates and betas: what its schedule says, times what the controller says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vramplan.adaptive.controller import Controller
from vramplan.errors import UnsupportedError

NAMES = ("lr", "betas")


class LearningRates:
    """Scales a schedule's values without taking part in how it computes them.

    The schedule finds its own values in the optimizer at each of its steps, and its results are scaled afterwards: also
    schedules that compute a rate from the one before, and those that change betas (OneCycleLR), work as they do alone.
    While the factor is 1, no bit differs. Has what a Trainer asks of a schedule: step, get_last_lr and states.

    Args:
        optimizer: A torch optimizer, or accelerate's wrapper.
        scheduler: A schedule of torch, transformers or accelerate for the base batch, or None.

    Raises:
        UnsupportedError: for a schedule that is told a metric, such as ReduceLROnPlateau.
    """

    def __init__(self, optimizer: Any, scheduler: Any = None) -> None:
        if any(name in ("ReduceLROnPlateau", "GreedyLR") for name in (kind.__name__ for kind in type(scheduler).mro())):
            raise UnsupportedError(f"{type(scheduler).__name__}: a schedule that follows a metric is not scaled")
        self.optimizer, self.scheduler = optimizer, scheduler
        self.base_steps = 1
        """How many steps of the base batch the last optimizer step was worth."""
        self.own = self._read()
        """The schedule's own values, of each parameter group."""

    def step(self) -> None:
        """Move the schedule on, by as many of its steps as the samples of the last optimizer step are worth.

        The values are the schedule's own afterwards: :meth:`apply` scales them.
        """
        self._write(self.own)
        for _ in range(self.base_steps if self.scheduler is not None else 0):
            self.scheduler.step()
        self.own = self._read()

    def apply(self, controller: Controller) -> None:
        """Set the rates and betas of the next optimizer step."""
        factor = controller.learning_rate_factor
        self._write([_scaled(values, factor, controller) for values in self.own])

    def get_last_lr(self) -> list[Any]:
        """The rates that are set."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """The schedule's state and its own values."""
        plain = [{name: _plain(value) for name, value in values.items()} for values in self.own]
        return {"own": plain, "scheduler": None if self.scheduler is None else self.scheduler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved values; the optimizer's own state is loaded apart."""
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.own = [
            {name: tuple(value) if name == "betas" else value for name, value in values.items()}
            for values in state["own"]
        ]

    def _read(self) -> list[dict[str, Any]]:
        return [{name: _copy(group[name]) for name in NAMES if name in group} for group in self.optimizer.param_groups]

    def _write(self, values: list[dict[str, Any]]) -> None:
        for group, own in zip(self.optimizer.param_groups, values, strict=True):
            for name, value in own.items():
                if isinstance(group[name], torch.Tensor):  # a rate that a CUDA graph or a compiled step reads
                    group[name].fill_(value)
                else:
                    group[name] = value


def _scaled(values: dict[str, Any], factor: float, controller: Controller) -> dict[str, Any]:
    scaled = {**values, "lr": values["lr"] * factor}
    betas = values.get("betas")
    if isinstance(betas, tuple) and len(betas) == 2:
        scaled["betas"] = controller.betas(betas)
    return scaled


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value
