"""The training loop: a plain one, or the loop of transformers' Trainer and accelerate.

The Trainer's part follows transformers 5.23 trainer.py (_run_epoch, get_batch_samples, training_step, compute_loss) and
accelerate 1.15 (DataLoaderShard, prepare_model, backward), statement by statement wherever tensors are created
or freed; a test compares it with the real Trainer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from vramplan.errors import ConfigError
from vramplan.inputs.job import Job
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.model import optimizers
from vramplan.torch_backend.model.batches import Inputs, first_of, make_inputs
from vramplan.torch_backend.model.subject import Subject

MAX_MICRO_STEPS = 2
"""Micro-batches run per optimizer step: from the second on each finds the gradients of those before it."""
WAITING = "batches to come"
"""Label of the micro-batches that the Trainer moves to the device before it needs them."""
MAX_GRAD_NORM = 1.0
"""The Trainer's default."""


class Engine(Protocol):
    """DeepSpeed's engine, which runs backward and the optimizer in place of the loop."""

    def backward(self, loss: torch.Tensor, scale_wrt_gas: bool) -> Any:
        """Gradients of one micro-batch."""

    def step(self) -> Any:
        """Clip the gradients, update the weights, free the gradients."""

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Set whether the next micro-batch is the last of an optimizer step."""


class Observer(Protocol):
    """Observes steps as they run: a storage tracker, or a meter on a GPU."""

    def enter(self, phase: str) -> None:
        """Start `phase`."""

    def called(self, name: str) -> AbstractContextManager[None]:
        """Inside, new tensors are labelled `name`."""

    def categorize(self, category: str, values: Iterable[Any], name: str = "") -> None:
        """Set the category of these tensors, and their label."""


@contextmanager
def autocast(job: Job, device_type: str) -> Iterator[None]:
    """Inside, torch.autocast of the job is enabled."""
    dtype = job.forward_autocast
    with torch.autocast(device_type, dtype=DTYPES[dtype or "bf16"], enabled=dtype is not None):
        yield


def loss_of(outputs: Any) -> torch.Tensor:
    """The loss in a model's output.

    Raises:
        ConfigError: if there is none.
    """
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", outputs)
    if isinstance(loss, tuple):
        loss = loss[0]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ConfigError("the model's output has no loss: expected a scalar, or one called `loss`")
    return loss


class Steps:
    """Optimizer steps of one job on one model, one after another."""

    def __init__(
        self,
        subject: Subject,
        job: Job,
        recipe: optimizers.Recipe,
        observer: Observer,
        enter: Callable[[str], None] | None = None,
        device: str = "cpu",
    ) -> None:
        self.subject, self.job, self.observer, self.device = subject, job, observer, device
        self.model: nn.Module = subject.module
        """The module that is called: the model, or its wrapper for several ranks."""
        self.no_sync: Callable[[], AbstractContextManager[None]] = nullcontext
        """Context of each micro-step but the last of an optimizer step: ranks do not reduce gradients yet."""
        self.engine: Engine | None = None
        """DeepSpeed's engine, if it runs backward and the optimizer."""
        self.enter = enter or observer.enter
        self.fill: Callable[[Inputs], Inputs] = lambda inputs: inputs
        """Fills a batch with values in a real run; a trace has no values."""
        self.trained = [p for p in subject.module.parameters() if p.requires_grad]
        self.optimizer = optimizers.make(recipe, subject.module, job)
        self.lengths: Sequence[int] = ()
        """Tokens of each micro-batch of the next optimizer step, if they differ in length; all of them run."""
        self._references: list[Any] = []
        self._outputs: Any = None
        """The model's outputs, if the job's loop keeps them."""
        inner = getattr(subject.module, "get_base_model", lambda: subject.module)()
        signature = inspect.signature(inner.forward)
        self.counts_items = getattr(inner, "accepts_loss_kwargs", True) and any(
            p.kind == p.VAR_KEYWORD for p in signature.parameters.values()
        )

    @property
    def micro_steps(self) -> int:
        """Micro-batches of the next optimizer step that run."""
        return len(self.lengths) or min(MAX_MICRO_STEPS, self.job.gradient_accumulation_steps)

    def run(self) -> None:
        """One optimizer step."""
        if self.job.loop == "trainer":
            self._trainer_step()
        else:
            self._plain_step()

    def evaluate(self) -> None:
        """A forward without gradients at the same batch size."""
        self.subject.module.eval()
        with torch.no_grad():
            self._forward(self._inputs())

    def close(self) -> None:
        """Drop the loop's own references to tensors."""
        self._references.clear()

    # -- plain ---------------------------------------------------------------------------------------------------------

    def _plain_step(self) -> None:
        """``loss = model(**batch).loss; loss.backward()``; the loss and its graph are freed at the end."""
        loss: torch.Tensor | None = None
        inputs = None
        for number in range(self.micro_steps):
            self.enter("forward")
            inputs = self._inputs(number=number)
            with self._micro_step(number):
                loss = self._forward(inputs)
                self._backward(loss)
            self._outputs = None
        self.enter("optimizer")
        self._optimize()
        del loss, inputs

    def _inputs(self, times: int = 1, number: int = 0) -> Inputs:
        job = self.job
        if self.lengths:
            job = job.model_copy(update={"sequence_length": self.lengths[number]})
        return self.fill(make_inputs(self.subject, job, self.device, times))

    def _forward(self, inputs: Inputs, **options: Any) -> torch.Tensor:
        model = self.model
        if self.subject.model_inputs is not None:
            options |= self.subject.model_inputs.arguments
        with nullcontext() if self.subject.casts_itself else autocast(self.job, self.device.partition(":")[0]):
            outputs = model(**inputs, **options) if isinstance(inputs, Mapping) else model(*inputs)
        if self.job.loop == "trainer" and self.job.casts and not self.subject.casts_itself:
            from accelerate.utils.operations import convert_to_fp32

            outputs = convert_to_fp32(outputs)
        if self.job.keeps_outputs and torch.is_grad_enabled():
            self._outputs = outputs
        return loss_of(outputs)

    def _micro_step(self, number: int) -> AbstractContextManager[None]:
        last = number == self.micro_steps - 1
        if self.engine is not None:
            self.engine.set_gradient_accumulation_boundary(is_boundary=last)
        return nullcontext() if last else self.no_sync()

    def _backward(self, loss: torch.Tensor) -> None:
        self.enter("backward")
        if self.engine is not None:
            self.engine.backward(loss, scale_wrt_gas=False)  # the loop divided it already
            return
        loss.backward()
        self.observer.categorize("gradient", [p.grad for p in self.trained])

    def _optimize(self) -> None:
        if self.engine is not None:
            self.engine.step()
            return
        self.optimizer.step()
        for state in self.optimizer.state.values():
            for name, value in state.items():
                self.observer.categorize("optimizer_state", [value], name)
        self.optimizer.zero_grad(set_to_none=True)

    # -- transformers' Trainer -----------------------------------------------------------------------------------------

    def _trainer_step(self) -> None:
        self.enter("forward")
        batches, items = self._fetch()
        self._references = [batches, items]  # the references of the step before are dropped here, not earlier
        if not hasattr(self, "total"):
            self.total = torch.zeros((), device=self.device)
        for number, inputs in enumerate(batches[: self.micro_steps]):
            self.enter("forward")
            others = 0 if self.lengths else number and self.job.gradient_accumulation_steps - 1
            with self._micro_step(number):
                loss = self._training_step(first_of(inputs, others), items)
            torch.isnan(loss)  # logging_nan_inf_filter
            torch.isinf(loss)
            self.total += loss
        del inputs
        self.enter("optimizer")
        if self.engine is None:
            self._references.append(nn.utils.clip_grad_norm_(self.trained, MAX_GRAD_NORM))
        self._optimize()

    def _fetch(self) -> tuple[list[Inputs], torch.Tensor | None]:
        """All micro-batches of a step at once (get_batch_samples).

        Those from the second on are one batch here, unless they differ in length.
        """
        steps = self.job.gradient_accumulation_steps
        batches = [self._inputs(number=number) for number in range(len(self.lengths) or 1)]
        if steps > 1 and not self.lengths:
            with self.observer.called(WAITING):
                batches.append(self._inputs(steps - 1))
        first = batches[0]
        if not (self.counts_items and isinstance(first, Mapping) and "labels" in first):
            return batches, None
        labels = [batch["labels"] for batch in batches if isinstance(batch, Mapping)]
        if self.subject.model_inputs is None:  # causal losses shift labels (trainer.py: _loss_shifts_labels)
            labels = [ids[..., 1:] for ids in labels]
        counts = [ids.ne(-100).sum() for ids in labels]
        return batches, sum(counts) / 1

    def _training_step(self, inputs: Inputs, items: torch.Tensor | None) -> torch.Tensor:
        """The detached loss; the graph is freed when this returns."""
        if items is not None:
            loss = self._forward(inputs, num_items_in_batch=items)
            loss *= 1
        else:
            loss = self._forward(inputs)
            loss = loss / self.job.gradient_accumulation_steps
        loss = loss / 1
        self._backward(loss)
        return loss.detach()
