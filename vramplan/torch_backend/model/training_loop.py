"""The training loop as it runs: a plain one, or what transformers' Trainer and accelerate make of it.

The Trainer's part follows transformers 5.23 trainer.py (_run_epoch, get_batch_samples, training_step, compute_loss) and
accelerate 1.15 (DataLoaderShard, prepare_model, backward), statement by statement where tensors are made or dropped;
a test runs the real Trainer beside it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from vramplan.errors import ConfigError
from vramplan.inputs.job import Job
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.model import optimizers
from vramplan.torch_backend.model.build import Pictures, Subject

MOST_MICRO_STEPS = 2
"""A third micro-batch of one optimizer step finds what the second found: the gradients."""
WAITING = "batches to come"
"""How the watch calls the micro-batches that the Trainer has on the device before it needs them."""
MAX_GRAD_NORM = 1.0
"""The Trainer's default."""

Inputs = Mapping[str, torch.Tensor] | tuple[torch.Tensor, ...]


class Engine(Protocol):
    """Runs backward and the optimizer in the loop's place: DeepSpeed's."""

    def backward(self, loss: torch.Tensor, scale_wrt_gas: bool) -> Any:
        """Gradients of one micro-batch."""

    def step(self) -> Any:
        """Clip, update, drop the gradients."""

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Say whether the micro-batch to come is an optimizer step's last."""


class Observer(Protocol):
    """Whoever looks on while steps run: the watch over tensors, or a meter on a card."""

    def enter(self, phase: str) -> None:
        """What follows belongs to `phase`."""

    def called(self, name: str) -> AbstractContextManager[None]:
        """What is made here is called `name`."""

    def categorize(self, category: str, values: Iterable[Any], name: str = "") -> None:
        """Say what these tensors are for, and how they are called."""


def make_inputs(subject: Subject, job: Job, device: str, times: int = 1) -> Inputs:
    """`times` micro-batches on the device: token ids and labels, and what else comes with them."""
    if subject.example is not None:
        if isinstance(subject.example, Mapping):
            return {name: _like(one, times, device) for name, one in subject.example.items()}
        return tuple(_like(one, times, device) for one in subject.example)
    if subject.fed is not None:
        return {
            one.name: torch.full(
                (times * job.micro_batch_size, *one.shape),
                int(one.name == "attention_mask"),
                dtype=torch.int64 if one.dtype == "int64" else DTYPES[one.dtype],
                device=device,
            )
            for one in subject.fed.inputs
        }
    shape = (times * job.micro_batch_size, job.sequence_length)
    names = ["input_ids", "labels"]
    if job.batches == "packed":
        names.append("position_ids")
    elif job.batches == "padded" or job.loop == "trainer":
        names.append("attention_mask")
    texts = {name: torch.full(shape, int(name == "attention_mask"), dtype=torch.int64, device=device) for name in names}
    if subject.pictures is not None:
        texts |= with_pictures(subject.pictures, shape, device)
    return texts


def with_pictures(pictures: Pictures, shape: tuple[int, int], device: str) -> dict[str, torch.Tensor]:
    """The images or videos of a batch of texts, and the texts that speak of them; models look at these numbers."""
    samples, length = shape
    one = pictures.one
    kinds = one.token_kinds * pictures.per_sample
    row = torch.tensor(kinds + [0] * (length - len(kinds)), dtype=torch.int64)
    texts = {
        "input_ids": ((row > 0) * pictures.token_id).repeat(samples, 1),
        "attention_mask": torch.ones(shape, dtype=torch.int64),
    }
    if pictures.token_types:
        texts[pictures.token_types] = row.repeat(samples, 1)
    made = {name: text.to(device) for name, text in texts.items()}
    for tensor in one.tensors:
        whole = tensor.batched(samples, pictures.per_sample, length)
        dtype = {"fp32": torch.float32, "int64": torch.int64}[tensor.dtype]
        if tensor.values is None:
            made[tensor.name] = torch.zeros(*whole, dtype=dtype, device=device)
        else:
            values = torch.tensor(tensor.values, dtype=dtype).view(tensor.shape)
            times = whole[: len(whole) - len(tensor.shape)] or (whole[0] // tensor.shape[0],)
            made[tensor.name] = values.repeat(*times, *[1] * (len(whole) - len(times))).to(device)
    return made


def _like(example: torch.Tensor, times: int, device: str) -> torch.Tensor:
    shape = (times * example.shape[0], *example.shape[1:]) if example.dim() else ()
    return torch.zeros(shape, dtype=example.dtype, device=device)


def first_of(inputs: Inputs, times: int) -> Inputs:
    """The first micro-batch of `times` that wait together."""
    if times <= 1:
        return inputs
    if isinstance(inputs, Mapping):
        return {name: one[: one.shape[0] // times] for name, one in inputs.items()}
    return tuple(one[: one.shape[0] // times] for one in inputs)


@contextmanager
def autocast(job: Job, device_type: str) -> Iterator[None]:
    """The job's autocast around a forward."""
    dtype = torch.bfloat16 if job.autocast == "none" else DTYPES[job.autocast]
    with torch.autocast(device_type, dtype=dtype, enabled=job.autocast != "none"):
        yield


def loss_of(outputs: Any) -> torch.Tensor:
    """The loss in a model's output.

    Raises:
        ConfigError: where there is none.
    """
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", outputs)
    if isinstance(loss, tuple):
        loss = loss[0]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ConfigError("the model's output holds no loss: expected a scalar, or one called `loss`")
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
        """What is called: the model, or what wraps it for several ranks."""
        self.alone: Callable[[], AbstractContextManager[None]] = nullcontext
        """Around each micro-step but an optimizer step's last: ranks do not sum their gradients yet."""
        self.engine: Engine | None = None
        """What does backward and update itself, if anything does."""
        self.enter = enter or observer.enter
        self.fill: Callable[[Inputs], Inputs] = lambda inputs: inputs
        """What a real run puts into a batch; a trace has no values."""
        self.trained = [p for p in subject.module.parameters() if p.requires_grad]
        self.optimizer = optimizers.make(recipe, subject.module, job)
        self.micro_steps = min(MOST_MICRO_STEPS, job.gradient_accumulation_steps)
        self.held: list[Any] = []
        inner = getattr(subject.module, "get_base_model", lambda: subject.module)()
        signature = inspect.signature(inner.forward)
        self.counts_items = getattr(inner, "accepts_loss_kwargs", True) and any(
            p.kind == p.VAR_KEYWORD for p in signature.parameters.values()
        )

    def run(self) -> None:
        """One optimizer step."""
        if self.job.loop == "trainer":
            self._trainer_step()
        else:
            self._plain_step()

    def evaluate(self) -> None:
        """A forward without gradients at the same batch."""
        self.subject.module.eval()
        with torch.no_grad():
            self._forward(self._inputs())

    def close(self) -> None:
        """Drop what the loop itself holds."""
        self.held.clear()

    # -- plain ---------------------------------------------------------------------------------------------------------

    def _plain_step(self) -> None:
        """``loss = model(**batch).loss; loss.backward()``; the loss, and the graph behind it, go at the end."""
        loss: torch.Tensor | None = None
        inputs = None
        for number in range(self.micro_steps):
            self.enter("forward")
            inputs = self._inputs()
            with self._micro_step(number):
                loss = self._forward(inputs)
                self._backward(loss)
        self.enter("optimizer")
        self._optimize()
        del loss, inputs

    def _inputs(self, times: int = 1) -> Inputs:
        return self.fill(make_inputs(self.subject, self.job, self.device, times))

    def _forward(self, inputs: Inputs, **more: Any) -> torch.Tensor:
        model = self.model
        if self.subject.fed is not None:
            more |= self.subject.fed.arguments
        with autocast(self.job, self.device.partition(":")[0]):
            outputs = model(**inputs, **more) if isinstance(inputs, Mapping) else model(*inputs)
        if self.job.loop == "trainer" and self.job.autocast != "none":
            from accelerate.utils.operations import convert_to_fp32

            outputs = convert_to_fp32(outputs)
        return loss_of(outputs)

    def _micro_step(self, number: int) -> AbstractContextManager[None]:
        last = number == self.micro_steps - 1
        if self.engine is not None:
            self.engine.set_gradient_accumulation_boundary(is_boundary=last)
        return nullcontext() if last else self.alone()

    def _backward(self, loss: torch.Tensor) -> None:
        self.enter("backward")
        if self.engine is not None:
            self.engine.backward(loss, scale_wrt_gas=False)  # the loop has divided it
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
        self.held = [batches, items]  # the step before held its own until now
        if not hasattr(self, "total"):
            self.total = torch.zeros((), device=self.device)
        for number, inputs in enumerate(batches[: self.micro_steps]):
            self.enter("forward")
            with self._micro_step(number):
                loss = self._training_step(first_of(inputs, number and self.job.gradient_accumulation_steps - 1), items)
            torch.isnan(loss)  # logging_nan_inf_filter
            torch.isinf(loss)
            self.total += loss
        del inputs
        self.enter("optimizer")
        if self.engine is None:
            self.held.append(nn.utils.clip_grad_norm_(self.trained, MAX_GRAD_NORM))
        self._optimize()

    def _fetch(self) -> tuple[list[Inputs], torch.Tensor | None]:
        """A step's micro-batches come together (get_batch_samples); those beyond the second are one tensor here."""
        steps = self.job.gradient_accumulation_steps
        batches = [self._inputs()]
        if steps > 1:
            with self.observer.called(WAITING):
                batches.append(self._inputs(steps - 1))
        first = batches[0]
        if not (self.counts_items and isinstance(first, Mapping) and "labels" in first):
            return batches, None
        labels = [one["labels"] for one in batches if isinstance(one, Mapping)]
        if self.subject.fed is None:  # causal losses shift labels (trainer.py: _loss_shifts_labels)
            labels = [one[..., 1:] for one in labels]
        counts = [one.ne(-100).sum() for one in labels]
        return batches, sum(counts) / 1

    def _training_step(self, inputs: Inputs, items: torch.Tensor | None) -> torch.Tensor:
        """The detached loss: the graph goes when this returns."""
        if items is not None:
            loss = self._forward(inputs, num_items_in_batch=items)
            loss *= 1
        else:
            loss = self._forward(inputs)
            loss = loss / self.job.gradient_accumulation_steps
        loss = loss / 1
        self._backward(loss)
        return loss.detach()
