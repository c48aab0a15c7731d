"""The training loop, as it runs: a plain one, or what transformers' Trainer and accelerate make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from vramplan.errors import ConfigError
from vramplan.job import Job
from vramplan.measure import optimizers
from vramplan.measure.models import Subject
from vramplan.measure.watch import DTYPES

MOST_MICRO_STEPS = 2
"""A third micro-batch of one optimizer step finds what the second found: the gradients."""

Inputs = Mapping[str, torch.Tensor] | tuple[torch.Tensor, ...]


def make_inputs(subject: Subject, job: Job) -> Inputs:
    """One micro-batch on the device."""
    if subject.example is not None:
        if isinstance(subject.example, Mapping):
            return {name: _like(one) for name, one in subject.example.items()}
        return tuple(_like(one) for one in subject.example)
    shape = (job.micro_batch_size, job.sequence_length)
    names = ["input_ids", "labels"]
    if job.batches == "packed":
        names.append("position_ids")
    if job.batches == "padded" or job.loop == "trainer":
        names.append("attention_mask")
    if job.batches == "packed" and "attention_mask" in names:
        names.remove("attention_mask")
    return {
        name: torch.full(shape, int(name == "attention_mask"), dtype=torch.int64, device="cpu") for name in names
    }


def _like(example: torch.Tensor) -> torch.Tensor:
    return torch.zeros(example.shape, dtype=example.dtype, device="cpu")


@contextmanager
def autocast(job: Job) -> Iterator[None]:
    """The job's autocast around a forward."""
    dtype = torch.bfloat16 if job.autocast == "none" else DTYPES[job.autocast]
    with torch.autocast("cpu", dtype=dtype, enabled=job.autocast != "none"):
        yield


def forward(subject: Subject, job: Job, inputs: Inputs) -> torch.Tensor:
    """The loss of one micro-batch; in the Trainer accelerate first converts all outputs to fp32.

    Raises:
        ConfigError: where the model's output holds no loss.
    """
    model = subject.module
    with autocast(job):
        outputs = model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
    if job.loop == "trainer" and job.autocast != "none":
        from accelerate.utils.operations import convert_to_fp32

        outputs = convert_to_fp32(outputs)
    loss = getattr(outputs, "loss", None)
    if loss is None and isinstance(outputs, Mapping):
        loss = outputs.get("loss")
    if loss is None:
        loss = outputs
    if isinstance(loss, tuple):
        loss = loss[0]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ConfigError("the model's output holds no loss: expected a scalar, or one called `loss`")
    return loss


class Steps:
    """Optimizer steps of one job on one model, one after another; `enter` is told where they are."""

    def __init__(self, subject: Subject, job: Job, enter: Callable[[str], None]) -> None:
        self.subject, self.job, self.enter = subject, job, enter
        self.trained = [p for p in subject.module.parameters() if p.requires_grad]
        self.optimizer = optimizers.make(subject.module, job)
        self.micro_steps = min(MOST_MICRO_STEPS, job.gradient_accumulation_steps)
        self.batches: list[Inputs] = []
        self.loss: torch.Tensor | None = None

    def run(self, after_backward: Callable[[], None], after_optimizer: Callable[[], None]) -> None:
        """One optimizer step."""
        trainer = self.job.loop == "trainer"
        self.enter("forward")
        for number in range(self.micro_steps):
            self.enter("forward")
            loss = forward(self.subject, self.job, self._fetch())
            self.enter("backward")
            loss.backward()  # type: ignore[no-untyped-call]
            after_backward()
            if trainer:  # training_step returns loss.detach(): the graph goes at once
                loss = loss.detach()
            self.loss = loss
            del loss
        self.enter("optimizer")
        if trainer:
            nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        after_optimizer()
        self.optimizer.zero_grad(set_to_none=True)
        if not trainer:
            self.loss = None

    def _fetch(self) -> Inputs:
        """The next batch. The Trainer fetches a step's batches together, and accelerate's loader is one ahead."""
        ahead = 1 + self.job.gradient_accumulation_steps if self.job.loop == "trainer" else 1
        while len(self.batches) < ahead:
            self.batches.append(make_inputs(self.subject, self.job))
        return self.batches[0]

    def close(self) -> None:
        """Drop what the loop itself holds."""
        self.batches.clear()
        self.loss = None

    def evaluate(self) -> None:
        """A forward without gradients at the same batch."""
        self.subject.module.eval()
        with torch.no_grad():
            inputs = self._fetch()
            forward(self.subject, self.job, inputs)
        self.close()


__all__ = ["Steps", "autocast", "forward", "make_inputs"]
