"""Run and measure real steps of a job, with random weights."""

from __future__ import annotations

import os
import platform
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from time import sleep
from typing import Any

import torch

from vramplan.errors import ConfigError, SpecError, VramplanError
from vramplan.inputs import nvml
from vramplan.inputs.sample_lengths import step_lengths
from vramplan.memory.allocator import AllocatorSettings
from vramplan.memory.measurement import Environment, Measured, Request, peaks_of
from vramplan.progress import Progress
from vramplan.torch_backend.dependencies import NEEDED, check_experts
from vramplan.torch_backend.first_line import first_line
from vramplan.torch_backend.model import optimizers
from vramplan.torch_backend.model.adapters import own_parameters
from vramplan.torch_backend.model.build import build, settle
from vramplan.torch_backend.model.training_loop import MAX_MICRO_STEPS, Steps
from vramplan.torch_backend.out_of_memory import is_out_of_memory
from vramplan.torch_backend.probe import deepspeed, distributed
from vramplan.torch_backend.probe.random_batches import filler, on_host
from vramplan.torch_backend.suppress_output import quiet
from vramplan.torch_backend.trace.cuda_emulation import as_cuda

History = list[tuple[str, int, int]]

SECONDS_OF_WATCHDOG = 0.5
"""ProcessGroupNCCL's watchdog releases the tensors of finished collectives every 0.1 s (ProcessGroupNCCL.cpp,
kWatchdogThreadSleepMillis, torch 2.13). On a GPU much more time passes before the first step."""


def run(request: Request, progress: Progress) -> tuple[Measured, History]:
    """Run the steps. Running out of memory is a result.

    Raises:
        VramplanError: if the job cannot run: no such device, a model that fails.
    """
    device = torch.device("cpu") if request.device == "cpu" else torch.device("cuda", request.local_rank)
    before = nvml.usage(os.getpid(), request.local_rank) if device.type == "cuda" else None
    if device.type == "cuda":
        _start_cuda(device)
    with quiet(), distributed.process_group(request, device):
        return _RealRun(request, device, before).run(progress)


def _start_cuda(device: torch.device) -> None:
    """Initialize CUDA.

    Raises:
        ConfigError: if CUDA does not start, with its own message.
    """
    if torch.version.cuda is None:
        raise ConfigError(
            f"torch {torch.__version__} is built without CUDA: install a CUDA build to probe;"
            " `vramplan estimate` needs no GPU"
        )
    try:
        torch.cuda.init()
        count = torch.cuda.device_count()
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"CUDA does not start: {first_line(error)}; `vramplan estimate` needs no GPU") from error
    if not count:
        raise ConfigError("no CUDA GPU is visible here; `vramplan estimate` needs none")
    if (device.index or 0) >= count:
        raise ConfigError(f"GPU number {device.index} is needed, {count} are visible here")


class _RealRun:
    """One run of one rank."""

    def __init__(self, request: Request, device: torch.device, before: nvml.Usage | None) -> None:
        self.request, self.device, self.before = request, device, before
        self.job = settle(request.spec, request.job)
        if device.type == "cuda":
            from vramplan.torch_backend.probe.cuda_meter import CudaMeter

            self.meter: Any = CudaMeter(device, request.cap_bytes, request.history)
        else:
            from vramplan.torch_backend.probe.host_meter import HostMeter

            settings = AllocatorSettings(expandable_segments=self.job.expandable_segments)
            self.meter = HostMeter(request.card, request.cap_bytes, settings, request.history)
        self.step_seconds: list[float] = []
        self.counts = (0, 0)
        self.after: nvml.Usage | None = None
        self.reserved_bytes = 0

    def run(self, progress: Progress) -> tuple[Measured, History]:
        """Build the model, train, evaluate."""
        meter, failed, message = self.meter, None, ""
        accumulated = self.job.gradient_accumulation_steps
        on_host = self.device.type == "cpu"
        try:
            with as_cuda(self.request.card, kernels=False) if on_host else nullcontext():
                meter.start()
                self._train(progress)
        except VramplanError:
            raise
        except Exception as error:  # model code of any origin
            if not is_out_of_memory(error):
                raise SpecError(
                    f"{self.request.spec.name}: {meter.phases.name or 'the run'} fails: {type(error).__name__}:"
                    f" {first_line(error)}"
                ) from error
            failed, message = meter.phases.name or "loaded", first_line(error)
        history = meter.history() if self.request.history else []
        phases = dict(meter.phases.peaks)
        phases.pop(failed, None)
        trained = failed in (None, "eval")
        allocated, reserved = peaks_of(phases) if trained else (None, None)
        process, context = self._process()
        measured = Measured(
            date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            model=self.request.spec.name,
            model_type=self.request.spec.model_type,
            config=self.request.spec.config,
            card=self.request.card.name,
            job=self.job,
            environment=self._environment(),
            outcome="ok" if trained else "oom",
            message=message,
            failed_phase=failed,
            peak_allocated_bytes=allocated,
            peak_requested_bytes=meter.phases.requested_bytes if trained else None,
            peak_reserved_bytes=reserved,
            phases=phases,
            process_bytes=process,
            context_bytes=context,
            num_parameters=self.counts[0],
            num_trainable_parameters=self.counts[1],
            step_seconds=() if self.request.device == "emulated" else tuple(self.step_seconds),  # kernels did not run
            micro_steps_run=min(MAX_MICRO_STEPS, accumulated) if self.job.lengths is None else accumulated,
        )
        return distributed.agree(self.request, measured), history

    def _train(self, progress: Progress) -> None:
        request, job, meter = self.request, self.job, self.meter
        progress(f"building {request.spec.name}", 0.1)
        recipe = optimizers.recipe(job)
        meter.enter("loaded")
        sharded = job.strategy == "fsdp" and job.num_gpus > 1  # then no GPU ever holds the whole model
        build_device = "meta" if sharded else str(self.device)
        constructor_context = deepspeed.constructor_context(job, self.device)
        check_experts(request.spec, job)
        subject = build(request.spec, job, build_device, request.trust_remote_code, constructor_context)
        fill = filler(subject, job)
        self.counts = _counts(subject.module)
        subject = replace(subject, example=on_host(subject.example))
        wrapped, no_sync = distributed.wrap(subject.module, job, self.device)
        if request.device == "emulated" and job.num_gpus > 1:
            sleep(SECONDS_OF_WATCHDOG)
        meter.loaded(subject.module, job.is_mapped)
        with meter.tracking(subject.module):
            steps = Steps(subject, job, recipe, meter, device=str(self.device))
            steps.model, steps.no_sync, steps.fill = wrapped, no_sync, fill
            if job.uses_deepspeed:
                steps.model = steps.engine = deepspeed.engine_for(steps, job, self.device)
            lengths = step_lengths(job) if job.lengths is not None else [[]] * request.steps
            for number, steps.lengths in enumerate(lengths):
                progress(f"step {number + 1} of {len(lengths)}", 0.3 + 0.6 * number / len(lengths))
                steps.run()
                meter.enter("")
                seconds, micro_steps = meter.phases.take_seconds(), steps.micro_steps
                micro_step = (seconds.get("forward", 0.0) + seconds.get("backward", 0.0)) / micro_steps
                self.step_seconds.append(
                    round(micro_step * job.gradient_accumulation_steps + seconds.get("optimizer", 0.0), 6)
                )
            self.after = nvml.usage(os.getpid(), request.local_rank) if self.device.type == "cuda" else None
            self.reserved_bytes = meter.reserved_bytes()
            steps.close()
            steps.lengths = ()
            progress("evaluation", 0.95)
            meter.enter("eval")
            steps.evaluate()
            meter.enter("")

    def _process(self) -> tuple[int | None, int | None]:
        """Bytes that the driver counts for this process, and those of them outside PyTorch's allocator."""
        if self.after is None or self.before is None or self.request.device == "emulated":
            return None, None
        process = self.after.process_bytes
        if process is None:  # the growth of all use of the GPU: exact unless other processes start or end
            process = max(0, self.after.used_bytes - self.before.used_bytes)
        return process, max(0, process - self.reserved_bytes)

    def _environment(self) -> Environment:
        versions = {"python": platform.python_version()}
        for name in ("vramplan", *NEEDED):
            with suppress(PackageNotFoundError):
                versions[name] = version(name)
        environment = Environment(
            device="cpu",
            total_bytes=0,
            versions=versions,
            allocator_settings=self.request.settings,
            cap_bytes=self.request.cap_bytes,
            ranks=self.job.num_gpus,
        )
        if self.device.type == "cpu":
            return environment
        properties = torch.cuda.get_device_properties(self.device)
        before, held_by_others = self.before, 0
        if before is not None:  # total_memory of CUDA is less than the driver's total
            held_by_others = max(0, before.used_bytes - (before.total_bytes - properties.total_memory))
        return environment.model_copy(
            update={
                "device": properties.name,
                "total_bytes": properties.total_memory,
                "is_emulated": self.request.device == "emulated",
                "compute_capability": f"{properties.major}.{properties.minor}",
                "multiprocessors": properties.multi_processor_count,
                "driver": before.driver if before else None,
                "cuda": torch.version.cuda,
                "allocator_settings": os.environ.get("PYTORCH_ALLOC_CONF")
                or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
                or "",
                "held_by_others_bytes": held_by_others,
            }
        )


def _counts(module: torch.nn.Module) -> tuple[int, int]:
    """Parameters of the model without adapters, and those that train."""
    num_parameters = sum(p.numel() for p in own_parameters(module).values())
    return num_parameters, sum(p.numel() for p in module.parameters() if p.requires_grad)
