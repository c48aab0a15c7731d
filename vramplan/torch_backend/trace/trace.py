"""Trace two steps of the real model, PEFT and optimizer on fake tensors: without GPU, data or weights."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from vramplan.errors import ConfigError, SpecError, UnsupportedError, VramplanError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import TOWER_MODULES, processed_image
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import describe, trained_as
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.task_rules import TRL_TASKS
from vramplan.inputs.tasks import joins_texts_of_swift
from vramplan.inputs.validation import check_job
from vramplan.memory.estimate import Estimate, SimulatedStep
from vramplan.memory.overheads import ddp_buckets, ddp_first_buckets
from vramplan.memory.summarize import summarize
from vramplan.memory.timeline import Storage
from vramplan.progress import Progress, silent
from vramplan.step_time.communication import Communication, Sent
from vramplan.step_time.kernels import micro_step_seconds
from vramplan.step_time.rates import rates_of
from vramplan.step_time.step_time import ComputeTime
from vramplan.torch_backend import dependencies
from vramplan.torch_backend.dtypes import NAMES
from vramplan.torch_backend.model import optimizers
from vramplan.torch_backend.model.adapters import bare, own_parameters, part_of
from vramplan.torch_backend.model.build import build, settle
from vramplan.torch_backend.model.materialize import place
from vramplan.torch_backend.model.subject import Subject
from vramplan.torch_backend.model.training_loop import Steps
from vramplan.torch_backend.suppress_output import quiet
from vramplan.torch_backend.trace import batch_scaling
from vramplan.torch_backend.trace.codec import keep_sizes
from vramplan.torch_backend.trace.cuda_emulation import as_cuda
from vramplan.torch_backend.trace.fake_tensors import Fakes, tensors_in_lists
from vramplan.torch_backend.trace.host_reads import HostReads
from vramplan.torch_backend.trace.records import Record
from vramplan.torch_backend.trace.speech import without_chance
from vramplan.torch_backend.trace.storage_tracker import StorageTracker

KERNELS_ELSEWHERE = ("causal_conv1d", "selective_scan", "chunk_scan", "delta_rule")
"""Parts of names of functions in modelling files for which other packages have kernels."""


def estimate(
    spec: ModelSpec, job: Job, gpu: Gpu, progress: Progress = silent, trust_remote_code: bool = False
) -> Estimate:
    """The memory of the job on the GPU, by a trace.

    Raises:
        VramplanError: if the job cannot run or cannot be traced.
    """
    return summarize(trace(spec, job, gpu, progress, trust_remote_code), spec.name, job, gpu)


def trace(
    spec: ModelSpec, job: Job, gpu: Gpu, progress: Progress = silent, trust_remote_code: bool = False
) -> SimulatedStep:
    """Run the job's steps on fake tensors.

    Raises:
        VramplanError: if the job cannot run or cannot be traced.
    """
    return run(
        spec,
        job,
        gpu,
        Fakes(values=job.pictures > 0 or spec.model_type in ("csm", "qwen2_audio")),
        progress,
        trust_remote_code,
    ).simulated_step(dependencies.versions())


def run(
    spec: ModelSpec,
    job: Job,
    gpu: Gpu,
    fakes: Fakes | None,
    progress: Progress = silent,
    trust_remote_code: bool = False,
) -> Run:
    """Run and track the job's steps: on fake tensors, or, if `fakes` is None, for real on the CPU.

    Raises:
        VramplanError: if the job cannot run or cannot be traced.
    """
    check_job(job, gpu)
    dependencies.check_experts(spec, job)
    if job.quantize != "none":
        raise UnsupportedError(
            f"{setting('quantize', job.quantize)}: quantized layers are not traced;"
            f" {setting('by', 'analytic')} supports them"
        )
    if job.task in (*TRL_TASKS, "generative_reranker") or job.joins_texts or joins_texts_of_swift(job):
        raise UnsupportedError(f"{setting('task', job.task)} is not traced; {setting('by', 'analytic')} supports it")
    if job.mixer_kernels != "torch":
        raise UnsupportedError(
            f"{setting('mixer_kernels', job.mixer_kernels)}: kernels of other packages are not traced;"
            f" {setting('by', 'analytic')} describes them"
        )
    if job.lengths is not None:
        raise UnsupportedError(f"{setting('lengths')} is not traced; {setting('by', 'analytic')} supports it")
    if job.strategy != "ddp":
        raise UnsupportedError(
            f"{setting('strategy', job.strategy)}: a trace divides neither weights nor gradients nor optimizer states"
            f" among GPUs; use {setting('by', 'analytic')}, or {setting('strategy', 'ddp')}"
        )
    progress(f"building {spec.name}", 0.0)
    with quiet(), as_cuda(gpu):
        recipe = optimizers.recipe(job)
        subject = build(spec, job, "meta" if fakes else "cpu", trust_remote_code)
        traced = Run(subject, recipe, spec, job, gpu, fakes, progress)
        traced.go()
    return traced


class TracedModel(batch_scaling.TraceScaling):
    """Scaling over the micro-batch, by traces on fake tensors; progress is that of all traces together."""

    def __init__(self, progress: Progress = silent, trust_remote_code: bool = False) -> None:
        super().__init__(
            lambda spec, job, gpu: trace(
                spec,
                job,
                gpu,
                lambda what, share: progress(f"micro-batch {job.micro_batch_size}: {what}", share),
                trust_remote_code,
            )
        )


class Run:
    """One tracked run of a job: loading, two optimizer steps, an evaluation."""

    def __init__(
        self,
        subject: Subject,
        recipe: optimizers.Recipe,
        spec: ModelSpec,
        job: Job,
        gpu: Gpu,
        fakes: Fakes | None,
        progress: Progress,
    ) -> None:
        self.subject, self.recipe, self.spec, self.job = subject, recipe, spec, job
        self.gpu, self.fakes, self.progress = gpu, fakes, progress
        self.tracker = StorageTracker(fakes, HostReads(job, spec.name).answer if fakes else None, gpu)
        self.stage = 0
        self.trained: list[torch.nn.Parameter] = []
        self.training_events = 0
        self.first_buckets: list[int] = []
        """DDP's buckets, as long as they are those of the first backward."""
        self.has_reduced = False

    def _enter(self, phase: str) -> None:
        self.tracker.enter(phase)
        if phase == "forward" and self.has_reduced:
            self._rebuild_buckets()
        self.has_reduced |= phase == "optimizer" or (phase == "backward" and self.job.loop == "plain")
        self.stage += 1
        self.progress(phase, min(0.95, 0.1 + 0.12 * self.stage))

    def go(self) -> None:
        """Run all phases.

        Raises:
            UnsupportedError: if the model's control flow depends on data.
            SpecError: if the model itself fails.
        """
        tracker = self.tracker
        try:
            with tracker.modules(self.subject.module), tensors_in_lists(), without_chance():
                self._go()
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise UnsupportedError(
                f"{self.spec.name}: {self._failing_module(error)} calls {error.func}, whose result depends on data;"
                " a trace has none"
            ) from error
        except VramplanError:
            raise
        except (Exception, SystemExit) as error:  # model code of any origin
            lines = str(error).strip().splitlines() or [""]
            module = self._failing_module(error)
            raise SpecError(f"{self.spec.name}: {module} fails: {type(error).__name__}: {lines[0]}") from error

    def _failing_module(self, error: BaseException) -> str:
        """The innermost module whose code was running when an error was raised."""
        paths = {id(module): path for path, module in self.subject.module.named_modules()}
        path, traceback = "", error.__traceback__
        while traceback is not None:
            path = paths.get(id(traceback.tb_frame.f_locals.get("self")), path)
            traceback = traceback.tb_next
        return path or "the model"

    def _go(self) -> None:
        tracker, job = self.tracker, self.job
        with self.fakes.mode if self.fakes else nullcontext():
            tracker.sums.calibrate(tracker)
            tracker.enter("loaded")
            place(self.subject.module, tracker)
            if self.fakes:
                keep_sizes(self.subject.module)
            if not any(p.requires_grad for p in self.subject.module.parameters()):
                raise ConfigError(f"{self.spec.name}: nothing in this model trains: every parameter is frozen")
            steps = Steps(self.subject, job, self.recipe, tracker, self._enter)
        self.trained = steps.trained
        if job.num_gpus > 1:
            gradients = [(NAMES[p.dtype], p.numel() * p.element_size()) for p in steps.trained]
            self.first_buckets = [self._allocate(bucket) for bucket in ddp_first_buckets(gradients)]
        with tracker:
            tracker.enter("forward")
            for _ in range(2):
                steps.run()
            steps.close()
            self.training_events = len(tracker.events)
            self._enter("eval")
            steps.evaluate()

    def _rebuild_buckets(self) -> None:
        """Replace DDP's buckets after the first backward."""
        if self.first_buckets:
            for number in self.first_buckets:
                self.tracker.free(number)
            self.first_buckets = []
            for bucket in ddp_buckets([p.numel() * p.element_size() for p in self.trained]):
                self._allocate(bucket)

    def _allocate(self, storage: Storage) -> int:
        """Record memory that no tensor of the run has: workspaces, DDP buckets."""
        record = Record(storage.num_bytes, storage.label, "", (storage.num_bytes,), "uint8")
        record.category, record.in_kernel = storage.category, storage.in_kernel
        return self.tracker.allocate(record)

    def _communication(self) -> Communication:
        """What DDP sends: each bucket of gradients, after the last micro-step."""
        sent = Sent()
        if self.job.num_gpus > 1:
            for bucket in ddp_buckets([p.numel() * p.element_size() for p in self.trained]):
                sent.add("all_reduce", "backward", bucket.num_bytes, is_hidden=True)
        return sent.communication()

    def simulated_step(self, versions: str) -> SimulatedStep:
        """The run as a step of the same type as the analytic estimator's."""
        tracker, gpu, upto = self.tracker, self.gpu, self.training_events
        parameters = own_parameters(self.subject.module)
        processor = TOWER_MODULES.get(self.spec.model_type)
        levels = tracker.timeline(None).live_bytes()
        names = ("forward", "backward", "optimizer")
        work = [tracker.work.get(name, []) for name in names]
        ends = [sum(map(len, work[:number])) for number in range(4)]
        kernels = [kernel for part in work for kernel in part]
        forward, backward, optimizer = ([(n, 1) for n in range(ends[part], ends[part + 1])] for part in range(3))
        update_seconds = sum(micro_step_seconds(kernels, optimizer, [], gpu)) + rates_of(gpu).step_seconds
        return SimulatedStep(
            by="trace",
            timeline=tracker.timeline(self.subject.vocabulary, upto),
            evaluation_bytes=max(levels[upto - 1 :]) - levels[upto - 1],
            num_parameters=sum(p.numel() for p in parameters.values()),
            num_trainable_parameters=sum(p.numel() for p in self.trained),
            compute=ComputeTime(*micro_step_seconds(kernels, forward, backward, gpu), update_seconds),
            flops_per_micro_step=sum(kernel.flops for kernel in (*work[0], *work[1])),
            versions=versions,
            notes=_slow_path(self.subject.module),
            communication=self._communication(),
            own_model=self.subject.example is not None,
            model_class="" if self.subject.example is not None else trained_as(self.spec, self.job),
            inputs_text=describe(self.spec, self.job),
            picture=processed_image(self.spec, self.job),
            num_vision_parameters=sum(p.numel() for name, p in parameters.items() if part_of(bare(name), processor))
            if processor
            else 0,
        )


def _slow_path(module: torch.nn.Module) -> tuple[str, ...]:
    """A note if transformers runs reference code for which a real run has kernels."""
    inner = getattr(module, "get_base_model", lambda: module)()
    functions = vars(sys.modules[type(inner).__module__])
    if not any(kernel in name for name in functions for kernel in KERNELS_ELSEWHERE):
        return ()
    return (
        "transformers ran its slow reference code for this architecture: a run with the kernels installed"
        " (mamba-ssm, causal-conv1d, flash-linear-attention) keeps less",
    )


__all__ = ["Run", "TracedModel", "estimate", "run", "settle", "trace"]
