"""Two steps of the real model, PEFT and optimizer on fake tensors: no GPU, no data, no weights."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from vramplan.errors import ConfigError, SpecError, UnsupportedError, VramplanError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import IMAGE_PROCESSORS, processed_image
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import describe
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.validation import check_job
from vramplan.memory.estimate import Estimate, SimulatedStep
from vramplan.memory.overheads import cublas_workspace, ddp_buckets
from vramplan.memory.roofline import flops, seconds
from vramplan.memory.summarize import summarize
from vramplan.memory.timeline import Storage
from vramplan.progress import Progress, silent
from vramplan.torch_backend import dependencies
from vramplan.torch_backend.model import optimizers
from vramplan.torch_backend.model.build import Subject, bare, build, own_parameters, part_of, settle
from vramplan.torch_backend.model.materialize import place
from vramplan.torch_backend.model.training_loop import Steps
from vramplan.torch_backend.suppress_output import quiet
from vramplan.torch_backend.trace import batch_scaling
from vramplan.torch_backend.trace.cuda_emulation import as_cuda
from vramplan.torch_backend.trace.fake_tensors import Fakes, tensors_in_lists
from vramplan.torch_backend.trace.host_reads import HostReads
from vramplan.torch_backend.trace.storage_tracker import Record, Watch

KERNELS_ELSEWHERE = ("causal_conv1d", "selective_scan", "chunk_scan", "delta_rule")
"""Functions of modelling files that other packages have kernels for."""


def estimate(
    spec: ModelSpec, job: Job, card: Gpu, progress: Progress = silent, trust_remote_code: bool = False
) -> Estimate:
    """What the job needs on the card, traced.

    Raises:
        VramplanError: for whatever cannot run or cannot be traced.
    """
    return summarize(trace(spec, job, card, progress, trust_remote_code), spec.name, job, card)


def trace(
    spec: ModelSpec, job: Job, card: Gpu, progress: Progress = silent, trust_remote_code: bool = False
) -> SimulatedStep:
    """Run the job's steps on fake tensors.

    Raises:
        VramplanError: for whatever cannot run or cannot be traced.
    """
    return run(spec, job, card, Fakes(values=job.pictures > 0), progress, trust_remote_code).played(
        dependencies.versions()
    )


def run(
    spec: ModelSpec,
    job: Job,
    card: Gpu,
    fakes: Fakes | None,
    progress: Progress = silent,
    trust_remote_code: bool = False,
) -> Run:
    """The job's steps, watched: on fake tensors, or, without `fakes`, for real on the CPU.

    Raises:
        VramplanError: for whatever cannot run or cannot be traced.
    """
    check_job(job, card)
    dependencies.check_experts(spec, job)
    if job.quantize != "none":
        raise UnsupportedError(
            f"--quantize {job.quantize}: quantized layers are not traced; --by analytic describes them"
        )
    if job.lengths is not None:
        raise UnsupportedError("--lengths is not traced; --by analytic takes it")
    if job.strategy == "device_map":
        raise UnsupportedError("--strategy device_map: several cards are not traced; --by analytic describes them")
    progress(f"building {spec.name}", 0.0)
    with quiet(), as_cuda(card):
        recipe = optimizers.recipe(job)
        subject = build(spec, job, "meta" if fakes else "cpu", trust_remote_code)
        found = Run(subject, recipe, spec, job, card, fakes, progress)
        found.go()
    return found


class TracedModel(batch_scaling.TraceScaling):
    """The law over traces on fake tensors; progress is that of all traces together."""

    def __init__(self, progress: Progress = silent, trust_remote_code: bool = False) -> None:
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
        card: Gpu,
        fakes: Fakes | None,
        progress: Progress,
    ) -> None:
        self.subject, self.recipe, self.spec, self.job = subject, recipe, spec, job
        self.card, self.fakes, self.progress = card, fakes, progress
        self.watch = Watch(fakes, HostReads(job, spec.name).answer if fakes else None)
        self.stage = 0
        self.trained: list[torch.nn.Parameter] = []
        self.training_events = 0

    def _enter(self, phase: str) -> None:
        self.watch.enter(phase)
        self.stage += 1
        self.progress(phase, min(0.95, 0.1 + 0.12 * self.stage))

    def go(self) -> None:
        """Run it all.

        Raises:
            UnsupportedError: where the model's control flow depends on data.
            SpecError: where the model itself fails.
        """
        watch = self.watch
        try:
            with watch.modules(self.subject.module), tensors_in_lists():
                self._go()
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise UnsupportedError(
                f"{self.spec.name}: {self._culprit(error)} calls {error.func}, whose result depends on data;"
                " a trace has none"
            ) from error
        except VramplanError:
            raise
        except (Exception, SystemExit) as error:  # model code of any origin
            lines = str(error).strip().splitlines() or [""]
            where = self._culprit(error)
            raise SpecError(f"{self.spec.name}: {where} fails: {type(error).__name__}: {lines[0]}") from error

    def _culprit(self, error: BaseException) -> str:
        """The innermost module whose code was running when an error was raised."""
        paths = {id(module): path for path, module in self.subject.module.named_modules()}
        found, traceback = "", error.__traceback__
        while traceback is not None:
            found = paths.get(id(traceback.tb_frame.f_locals.get("self")), found)
            traceback = traceback.tb_next
        return found or "the model"

    def _go(self) -> None:
        watch, job = self.watch, self.job
        with self.fakes.mode if self.fakes else nullcontext():
            watch.sums.calibrate(watch)
            watch.enter("loaded")
            place(self.subject.module, watch)
            if not any(p.requires_grad for p in self.subject.module.parameters()):
                raise ConfigError(f"{self.spec.name}: nothing in this model trains: every parameter is frozen")
            steps = Steps(self.subject, job, self.recipe, watch, self._enter)
        self.trained = steps.trained
        if job.num_gpus > 1:
            for bucket in ddp_buckets([p.numel() * p.element_size() for p in steps.trained]):
                self._hold(bucket)
        with watch:
            watch.enter("forward")
            for _ in range(2):  # one for the forward thread, one for the backward thread
                self._hold(cublas_workspace(self.card))
            for _ in range(2):
                steps.run()
            steps.close()
            self.training_events = len(watch.events)
            self._enter("eval")
            steps.evaluate()

    def _hold(self, storage: Storage) -> None:
        """Something that no tensor of the run shows."""
        record = Record(storage.num_bytes, storage.label, "", (storage.num_bytes,), "uint8")
        record.category, record.in_kernel = storage.category, storage.in_kernel
        self.watch.allocate(record)

    def played(self, versions: str) -> SimulatedStep:
        """What the run tells."""
        watch, card, upto = self.watch, self.card, self.training_events
        counted = own_parameters(self.subject.module)
        eyes = IMAGE_PROCESSORS.get(self.spec.model_type)
        levels = watch.timeline(None).live_bytes()
        work = [(kernel, 1) for phase in ("forward", "backward") for kernel in watch.work.get(phase, [])]
        optimizer = [(kernel, 1) for kernel in watch.work.get("optimizer", [])]
        return SimulatedStep(
            by="trace",
            timeline=watch.timeline(self.subject.vocabulary, upto),
            evaluation_bytes=max(levels[upto - 1 :]) - levels[upto - 1],
            num_parameters=sum(p.numel() for p in counted.values()),
            num_trainable_parameters=sum(p.numel() for p in self.trained),
            micro_step_seconds=seconds(work, card),
            optimizer_seconds=seconds(optimizer, card),
            flops_per_micro_step=flops(work),
            versions=versions,
            notes=_slow_path(self.subject.module),
            own_model=self.subject.example is not None,
            inputs_text=describe(self.spec, self.job),
            picture=processed_image(self.spec, self.job),
            num_vision_parameters=sum(p.numel() for name, p in counted.items() if part_of(bare(name), eyes))
            if eyes
            else 0,
        )


def _slow_path(module: torch.nn.Module) -> tuple[str, ...]:
    """Says so where transformers falls back on reference code that a real run has kernels for."""
    inner = getattr(module, "get_base_model", lambda: module)()
    functions = vars(sys.modules[type(inner).__module__])
    if not any(kernel in name for name in functions for kernel in KERNELS_ELSEWHERE):
        return ()
    return (
        "transformers ran its slow reference code for this architecture: a run with the kernels installed"
        " (mamba-ssm, causal-conv1d, flash-linear-attention) keeps less",
    )


__all__ = ["Run", "TracedModel", "estimate", "run", "settle", "trace"]
