"""Two steps of the real model, PEFT and optimizer on fake tensors: no GPU, no data, no weights."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from vramplan.card import Card
from vramplan.checks import check_job
from vramplan.conclude import Played, conclude
from vramplan.errors import UnsupportedError
from vramplan.job import Job
from vramplan.measure import extra
from vramplan.measure.cuda import as_cuda
from vramplan.measure.loop import Steps
from vramplan.measure.models import Subject, build, place
from vramplan.measure.watch import Record, Watch, categories
from vramplan.overheads import cublas_workspace, ddp_buckets
from vramplan.result import Estimate
from vramplan.roofline import flops, seconds
from vramplan.spec import ModelSpec
from vramplan.timeline import Storage

Progress = Callable[[str, float], None]
"""(what is being done, share that is done)"""


def _silent(what: str, share: float) -> None:
    pass


def estimate(
    spec: ModelSpec, job: Job, card: Card, progress: Progress = _silent, trust_remote_code: bool = False
) -> Estimate:
    """What the job needs on the card, traced.

    Raises:
        VramplanError: for whatever cannot run or cannot be traced.
    """
    return conclude(trace(spec, job, card, progress, trust_remote_code), spec.name, job, card)


def trace(
    spec: ModelSpec, job: Job, card: Card, progress: Progress = _silent, trust_remote_code: bool = False
) -> Played:
    """Run the job's steps on fake tensors.

    Raises:
        VramplanError: for whatever cannot run or cannot be traced.
    """
    check_job(job, card)
    versions = extra.versions()
    progress(f"building {spec.name}", 0.0)
    with quiet(), as_cuda(card):
        subject = build(spec, job, "meta", trust_remote_code)
        with FakeTensorMode(allow_non_fake_inputs=False):
            return Run(subject, spec, job, card, progress).played(versions)


class Run:
    """One watched run of a job: loading, two optimizer steps, an evaluation."""

    def __init__(self, subject: Subject, spec: ModelSpec, job: Job, card: Card, progress: Progress) -> None:
        self.subject, self.spec, self.job, self.card, self.progress = subject, spec, job, card, progress
        self.watch = Watch(self._host_value)
        self.stage = 0

    def _enter(self, phase: str) -> None:
        self.watch.enter(phase)
        self.stage += 1
        self.progress(phase, min(0.95, 0.1 + 0.12 * self.stage))

    def _host_value(self, tensor: torch.Tensor, module: str) -> Any:
        """What transformers asks a batch on the host: is every position attended, is nothing packed, how long is it.

        Raises:
            UnsupportedError: where anything else asks: a trace has no data.
        """
        frame: Any = sys._getframe(1)
        while frame is not None:
            file, name = frame.f_code.co_filename, frame.f_code.co_name
            if file.endswith("masking_utils.py"):
                return self.job.batches != ("packed" if name == "find_packed_sequence_indices" else "padded")
            if file.endswith("modeling_flash_attention_utils.py"):
                return self.job.sequence_length
            frame = frame.f_back
        raise UnsupportedError(
            f"{self.spec.name}: {module or 'the model'} reads a tensor's value ({tensor.dtype}, shape"
            f" {tuple(tensor.shape)}) to decide what to do; a trace has no data"
        )

    def played(self, versions: str) -> Played:
        """Run it all.

        Raises:
            UnsupportedError: where the model's control flow depends on data.
        """
        watch, subject, job = self.watch, self.subject, self.job
        try:
            with watch.modules(subject.module):
                return self._run(versions)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise UnsupportedError(
                f"{self.spec.name}: {watch.module() or 'the model'} calls {error.func}, whose result depends on data;"
                " a trace has none"
            ) from error

    def _run(self, versions: str) -> Played:
        watch, job, card = self.watch, self.job, self.card
        module = self.subject.module
        watch.enter("loaded")
        place(module, watch)
        steps = Steps(self.subject, job, self._enter)
        if job.num_gpus > 1:
            for bucket in ddp_buckets([p.numel() * p.element_size() for p in steps.trained]):
                self._hold(bucket)

        def after_backward() -> None:
            categories(watch, {"gradient": [p.grad for p in steps.trained if p.grad is not None]})
            self.micro_kernels, watch.kernels = watch.kernels, None

        def after_optimizer() -> None:
            states = [
                value
                for state in steps.optimizer.state.values()
                for value in state.values()
                if isinstance(value, torch.Tensor)
            ]
            categories(watch, {"optimizer_state": states})

        with watch:
            watch.enter("forward")
            for _ in range(2):
                self._hold(cublas_workspace(card))
            watch.kernels = []
            steps.run(after_backward, after_optimizer)
            watch.kernels = None
            kernels = self.micro_kernels
            steps.run(after_backward, after_optimizer)
            steps.close()
            upto = len(watch.events)
            self._enter("eval")
            steps.evaluate()
        counted = {id(p): p for name, p in module.named_parameters() if "lora_" not in name}
        timeline = watch.timeline(self.subject.vocabulary, upto)
        levels = watch.timeline(None).live_bytes()
        work = [(kernel, 1) for kernel in kernels or []]
        return Played(
            by="trace",
            timeline=timeline,
            evaluation_bytes=max(levels[upto - 1 :]) - levels[upto - 1],
            num_parameters=sum(p.numel() for p in counted.values()),
            num_trainable_parameters=sum(p.numel() for p in steps.trained),
            micro_step_seconds=seconds(work, card),
            optimizer_seconds=0.0,
            flops_per_micro_step=flops(work),
            versions=versions,
        )

    def _hold(self, storage: Storage) -> None:
        """Something that no tensor of the run shows."""
        record = Record(storage.num_bytes, storage.label, "", (storage.num_bytes,), "uint8")
        record.category, record.in_kernel = storage.category, storage.in_kernel
        self.watch.allocate(record)


@contextmanager
def quiet() -> Iterator[None]:
    """Libraries keep their warnings to themselves: they speak of weights that nobody loads."""
    loggers = [logging.getLogger(name) for name in ("transformers", "torch", "accelerate", "peft")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)
