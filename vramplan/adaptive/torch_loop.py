"""A training loop whose batch follows the run, for plain PyTorch and accelerate.

    loader = StepLoader(dataset, controller, collate_fn=collate, epochs=3)
    loop = AdaptiveLoop(controller, model, optimizer, loader, scheduler=scheduler, max_norm=1.0)
    for step in loop.steps(lambda batch: model(**batch).loss):
        print(step.number, step.loss, step.global_batch_size)

A loop of its own, because an out-of-memory can only be caught by who runs the forward and the backward. Between two
steps the program may do what it likes: evaluate, save, stop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vramplan.adaptive.batches import to_device, tokens_of
from vramplan.adaptive.controller import Controller, Decision
from vramplan.adaptive.gradient_norms import GradientNorms
from vramplan.adaptive.learning_rates import LearningRates
from vramplan.adaptive.observer import Observer
from vramplan.adaptive.out_of_memory import Accumulation
from vramplan.adaptive.ranks import Ranks
from vramplan.adaptive.step_loader import MicroBatch, Step, StepLoader
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnsupportedError, setting

if TYPE_CHECKING:
    from torch import Tensor, nn

DISTRIBUTED = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU")
"""Kinds of accelerate's set-ups in which each rank holds whole gradients."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an optimizer step was."""

    number: int
    """Counted from 1."""
    loss: float
    """Mean over the samples (or what `count` counts) of all ranks."""
    samples: int
    """So far, of all ranks."""
    tokens: int
    global_batch_size: int
    decisions: tuple[Decision, ...]
    """What changed in this step after an out-of-memory, and what changes from the next step on."""


class AdaptiveLoop:
    """Runs optimizer steps at the controller's batch, measures, tells the controller, and does what it decides.

    Args:
        controller: Decides; the same on every rank.
        model: The module to train, wrapped in DistributedDataParallel if there are several processes.
        optimizer, scheduler: For the controller's base batch; the schedule moves by samples, in steps of that batch.
        loader: Gives the samples, for this process' rank.
        max_norm: Clip the gradient to this norm; None: no clipping. The norm is reused as that of the whole step.
        measure_every: Measure the gradients' norms in each k-th step: each second one costs at most 2 % of a step where
            it was measured (benchmarks/gradient_norms.json). A policy that needs norms is told those steps alone.
        scaler: A torch.amp.GradScaler, for fp16.
        accelerator: accelerate's, which has prepared model, optimizer and scheduler, and not the data.
        count: What a mean loss is the mean of: a batch -> how many, such as tokens with a label. None: samples. Losses
            are weighted so that each of them counts the same in the whole step.
        leave_out, consecutive: As in :class:`GradientNorms`.
        decisions: A file to which each decision is added as a line of JSON, by rank 0; a run that goes on adds to it.
        record: A file to which what the controller is told is added, for ``vramplan adapt simulate``.

    Raises:
        ConfigError: for impossible settings.
        UnsupportedError: for sharded parameters and other parallelism than DistributedDataParallel.
    """

    def __init__(
        self,
        controller: Controller,
        model: nn.Module,
        optimizer: Any,
        loader: StepLoader,
        *,
        scheduler: Any = None,
        max_norm: float | None = None,
        measure_every: int = 2,
        scaler: Any = None,
        accelerator: Any = None,
        count: Callable[[Any], float] | None = None,
        leave_out: Collection[str] = (),
        consecutive: bool = False,
        decisions: str | Path | None = None,
        record: str | Path | None = None,
    ) -> None:
        if measure_every < 1:
            raise ConfigError(f"{setting('measure_every', measure_every)}: expected 1 or more")
        if accelerator is not None:
            _check(accelerator)
            scaler = accelerator.scaler
        self.controller, self.model, self.optimizer, self.loader = controller, model, optimizer, loader
        self.max_norm, self.measure_every, self.count = max_norm, measure_every, count
        self.scaler, self.accelerator = scaler, accelerator
        self.device = next(model.parameters()).device
        self.ranks = Ranks(self.device)
        if (loader.rank, loader.world_size) != (self.ranks.rank, self.ranks.size):
            raise ConfigError(
                f"the loader is rank {loader.rank} of {loader.world_size}, this process {self.ranks.rank} of"
                f" {self.ranks.size}"
            )
        self.observer = Observer(controller, self.ranks, decisions, record)
        needed = controller.policy.needs_norms
        self.norms = GradientNorms(model, self.ranks, leave_out, consecutive) if needed else None
        self.accumulation = Accumulation(model, self.ranks, loader.cut_again, self.observer.smaller, self.norms)
        self.rates = LearningRates(optimizer, scheduler)
        self.rates.apply(controller)

    def steps(self, loss_of: Callable[[Any], Tensor]) -> Iterator[StepResult]:
        """The optimizer steps that are left of the run.

        Args:
            loss_of: A batch on the model's device -> the mean loss, with its graph. After an out-of-memory it is called
                again for samples that it has seen.
        """
        self.optimizer.zero_grad()
        while not self.loader.is_finished:
            for step in self.loader:
                yield self._take(step, loss_of)
            if not self.loader.is_finished:
                self.loader.set_epoch(self.loader.epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """All that model, optimizer, GradScaler and torch's random numbers do not hold; between two steps."""
        return {
            **self.observer.state_dict(),
            "loader": self.loader.state_dict(),
            "rates": self.rates.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another loop was saved, after model and optimizer have been loaded.

        Raises:
            ConfigError: if the state is of another policy, batch or data set.
        """
        self.observer.load_state_dict(state)
        self.loader.load_state_dict(state["loader"])
        self.rates.load_state_dict(state["rates"])
        self.rates.apply(self.controller)

    # -- one step ------------------------------------------------------------------------------------------------------

    def _take(self, step: Step, loss_of: Callable[[Any], Tensor]) -> StepResult:
        measured = self.norms is not None and (self.observer.steps + 1) % self.measure_every == 0
        batch_size = self.controller.rung.global_batch_size
        total = float(step.samples)
        if self.count is not None:
            (total,) = self.ranks.sums([sum(self.count(part.batch) for part in step.micro_batches)])

        def divisor_of(micro_batch: MicroBatch) -> float:
            count = len(micro_batch.indices) if self.count is None else self.count(micro_batch.batch)
            return total / (self.ranks.size * count) if count else float("inf")

        def compute(micro_batch: MicroBatch) -> Tensor:
            divisor = divisor_of(micro_batch)
            if divisor == float("inf"):  # nothing to count: its mean would be 0 / 0
                return torch.zeros((), device=self.device)
            loss = loss_of(to_device(micro_batch.batch, self.device)) / divisor
            self.accumulation.is_in_backward = True
            if self.accelerator is not None:
                self.accelerator.backward(loss)
            else:
                (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            return loss.detach()

        tokens = sum(tokens_of(part.batch) for part in step.micro_batches)
        losses = self.accumulation.run(step.micro_batches, compute, lambda part: 1 / divisor_of(part), measured)
        scale = 1.0 if self.scaler is None else float(self.scaler.get_scale())
        pair = None
        if self.norms is None or not measured:
            self._clip()
        elif self.norms.takes_clipping_norm:
            pair = self.norms.finish(self._clip(), scale)
        else:
            pair = self.norms.finish(None, scale)
            self._clip()
        learning_rate = float(self.rates.own[0]["lr"])
        self._update(step)
        observer = self.observer
        observer.count(float(torch.stack(losses).sum()) if losses else 0.0, tokens, step.samples)
        if measured or self.norms is None:
            observer.decide(learning_rate, pair)
        self.rates.apply(self.controller)
        return StepResult(
            observer.steps, observer.loss, observer.samples, observer.tokens, batch_size, observer.take_decisions()
        )

    def _clip(self) -> Tensor | None:
        """The norm before clipping, of unscaled gradients; None if nothing is clipped."""
        if self.max_norm is None:
            return None
        if self.accelerator is not None:
            norm: Tensor = self.accelerator.clip_grad_norm_(self.accumulation.parameters, self.max_norm)
            return norm
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        return torch.nn.utils.clip_grad_norm_(self.accumulation.parameters, self.max_norm)

    def _update(self, step: Step) -> None:
        if self.scaler is None or self.accelerator is not None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.rates.base_steps = step.base_steps
        self.rates.step()
        self.optimizer.zero_grad()


def _check(accelerator: Any) -> None:
    kind = accelerator.distributed_type.value
    if kind not in DISTRIBUTED:
        raise UnsupportedError(f"accelerate with {kind}: gradients of DistributedDataParallel are measured alone")
    if accelerator.gradient_accumulation_steps != 1:
        raise ConfigError(
            f"{setting('gradient_accumulation_steps', accelerator.gradient_accumulation_steps)}: the controller chooses"
            " it; create the Accelerator with 1"
        )
