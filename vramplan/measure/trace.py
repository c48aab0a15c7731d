"""Two steps of the real model, PEFT and optimizer on fake tensors: no GPU, no data, no weights."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from vramplan.card import Card
from vramplan.checks import check_job
from vramplan.conclude import Played, conclude
from vramplan.errors import UnsupportedError
from vramplan.job import Job
from vramplan.measure import extra, law, optimizers
from vramplan.measure.cuda import as_cuda
from vramplan.measure.fake import Fakes
from vramplan.measure.host import HostReads
from vramplan.measure.loop import Steps
from vramplan.measure.models import Subject, build, place
from vramplan.measure.watch import Record, Watch
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
        recipe = optimizers.recipe(job)
        subject = build(spec, job, "meta", trust_remote_code)
        return Run(subject, recipe, spec, job, card, progress).played(versions)


class Law(law.Law):
    """The law over traces on fake tensors; progress is that of all traces together."""

    def __init__(self, progress: Progress = _silent, trust_remote_code: bool = False) -> None:
        super().__init__(
            lambda spec, job, card: trace(
                spec,
                job,
                card,
                lambda what, share: progress(f"micro-batch {job.micro_batch_size}: {what}", share),
                trust_remote_code,
            )
        )


class Run:
    """One watched run of a job: loading, two optimizer steps, an evaluation."""

    def __init__(
        self,
        subject: Subject,
        recipe: optimizers.Recipe,
        spec: ModelSpec,
        job: Job,
        card: Card,
        progress: Progress,
    ) -> None:
        self.subject, self.recipe, self.spec, self.job, self.card, self.progress = (
            subject,
            recipe,
            spec,
            job,
            card,
            progress,
        )
        self.fakes = Fakes()
        self.watch = Watch(self.fakes, HostReads(job, spec.name).answer)
        self.stage = 0

    def _enter(self, phase: str) -> None:
        self.watch.enter(phase)
        self.stage += 1
        self.progress(phase, min(0.95, 0.1 + 0.12 * self.stage))

    def played(self, versions: str) -> Played:
        """Run it all.

        Raises:
            UnsupportedError: where the model's control flow depends on data.
        """
        watch, subject = self.watch, self.subject
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
        with self.fakes.mode:
            place(module, watch)
            steps = Steps(self.subject, job, self.recipe, watch, self._enter)
        if job.num_gpus > 1:
            for bucket in ddp_buckets([p.numel() * p.element_size() for p in steps.trained]):
                self._hold(bucket)

        with watch:
            watch.enter("forward")
            for _ in range(2):
                self._hold(cublas_workspace(card))
            for _ in range(2):
                steps.run()
            steps.close()
            upto = len(watch.events)
            self._enter("eval")
            steps.evaluate()
        counted = {id(p): p for name, p in module.named_parameters() if "lora_" not in name}
        timeline = watch.timeline(self.subject.vocabulary, upto)
        levels = watch.timeline(None).live_bytes()
        work = [(kernel, 1) for kernel in watch.work.get("forward", []) + watch.work.get("backward", [])]
        optimizer = [(kernel, 1) for kernel in watch.work.get("optimizer", [])]
        return Played(
            by="trace",
            timeline=timeline,
            evaluation_bytes=max(levels[upto - 1 :]) - levels[upto - 1],
            num_parameters=sum(p.numel() for p in counted.values()),
            num_trainable_parameters=sum(p.numel() for p in steps.trained),
            micro_step_seconds=seconds(work, card),
            optimizer_seconds=seconds(optimizer, card),
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
