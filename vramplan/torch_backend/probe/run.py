"""Real steps of a job: built on the device with random weights, run, measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from vramplan.errors import ConfigError, SpecError, UnsupportedError, VramplanError
from vramplan.inputs import nvml
from vramplan.inputs.job import Job
from vramplan.memory.allocator import AllocatorSettings
from vramplan.memory.measurement import Environment, Measured, Request, peaks_of
from vramplan.progress import Progress
from vramplan.torch_backend.dependencies import NEEDED, check_experts
from vramplan.torch_backend.model import optimizers
from vramplan.torch_backend.model.build import Subject, build, own_parameters, settle
from vramplan.torch_backend.model.training_loop import MOST_MICRO_STEPS, Inputs, Steps
from vramplan.torch_backend.probe import deepspeed, distributed
from vramplan.torch_backend.suppress_output import quiet
from vramplan.torch_backend.trace.cuda_emulation import as_cuda

History = list[tuple[str, int, int]]

SIGNS_OF_NO_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""How libraries that allocate for themselves say it."""


def run(request: Request, tell: Progress) -> tuple[Measured, History]:
    """Run the steps. Running out of memory is a result.

    Raises:
        VramplanError: for whatever cannot run: no such device, a model that fails.
    """
    if request.job.loss == "chunked" and request.device == "cuda":
        raise UnsupportedError("--loss chunked runs inside TRL's own trainer, which a probe on a card does not start")
    device = torch.device("cuda", request.local_rank) if request.device == "cuda" else torch.device("cpu")
    before = nvml.usage(os.getpid(), request.local_rank) if device.type == "cuda" else None
    if device.type == "cuda":
        _start_cuda(device)
    with quiet(), distributed.together(request, device):
        return _Real(request, device, before).run(tell)


def _start_cuda(device: torch.device) -> None:
    """Start CUDA.

    Raises:
        ConfigError: where it cannot, with its own words.
    """
    if torch.version.cuda is None:
        raise ConfigError(
            f"torch {torch.__version__} is built without CUDA: install a CUDA build to probe;"
            " `vramplan estimate` needs no card"
        )
    try:
        torch.cuda.init()
        count = torch.cuda.device_count()
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"CUDA does not start: {_first_line(error)}; `vramplan estimate` needs no card") from error
    if not count:
        raise ConfigError("no CUDA card is visible here; `vramplan estimate` needs none")
    if (device.index or 0) >= count:
        raise ConfigError(f"card number {device.index} is asked for, {count} are visible here")


class _Real:
    """One run."""

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
        self.reserved_then = 0

    def run(self, tell: Progress) -> tuple[Measured, History]:
        """Build, step, evaluate."""
        meter, failed, message = self.meter, None, ""
        micro_steps = min(MOST_MICRO_STEPS, self.job.gradient_accumulation_steps)
        on_host = self.device.type == "cpu"
        try:
            with as_cuda(self.request.card, kernels=False) if on_host else nullcontext():
                self._train(tell, micro_steps)
        except VramplanError:
            raise
        except Exception as error:  # model code of any origin
            if not _no_memory(error):
                raise SpecError(
                    f"{self.request.spec.name}: {meter.phases.name or 'the run'} fails: {type(error).__name__}:"
                    f" {_first_line(error)}"
                ) from error
            failed, message = meter.phases.name, _first_line(error)
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
            step_seconds=tuple(self.step_seconds),
            micro_steps_run=micro_steps,
        )
        return distributed.agree(self.request, measured), history

    def _train(self, tell: Progress, micro_steps: int) -> None:
        request, job, meter = self.request, self.job, self.meter
        tell(f"building {request.spec.name}", 0.1)
        recipe = optimizers.recipe(job)
        meter.enter("loaded")
        sharded = job.strategy == "fsdp" and job.num_gpus > 1  # then no card ever holds the whole model
        where, making = "meta" if sharded else str(self.device), deepspeed.making(job, self.device)
        check_experts(request.spec, job)
        subject = build(request.spec, job, where, request.trust_remote_code, making)
        fill = filler(subject, job)
        self.counts = _counts(subject.module)
        subject = replace(subject, example=_on_host(subject.example))
        wrapped, alone = distributed.wrap(subject.module, job, self.device)
        meter.loaded(subject.module)
        with meter.watching(subject.module):
            steps = Steps(subject, job, recipe, meter, device=str(self.device))
            steps.model, steps.alone, steps.fill = wrapped, alone, fill
            if job.strategy in deepspeed.STAGES and job.num_gpus > 1:
                steps.model = steps.engine = deepspeed.engine_for(steps, job, self.device)
            for number in range(request.steps):
                tell(f"step {number + 1} of {request.steps}", 0.3 + 0.6 * number / request.steps)
                steps.run()
                meter.enter("")
                taken = meter.phases.take_seconds()
                micro = (taken.get("forward", 0.0) + taken.get("backward", 0.0)) / micro_steps
                self.step_seconds.append(
                    round(micro * job.gradient_accumulation_steps + taken.get("optimizer", 0.0), 6)
                )
            self.after = nvml.usage(os.getpid(), request.local_rank) if self.device.type == "cuda" else None
            self.reserved_then = meter.reserved_bytes()
            steps.close()
            tell("evaluation", 0.95)
            meter.enter("eval")
            steps.evaluate()
            meter.enter("")

    def _process(self) -> tuple[int | None, int | None]:
        """What the driver counts for this process, and what of it lies outside torch's allocator."""
        if self.after is None or self.before is None:
            return None, None
        process = self.after.process_bytes
        if process is None:  # what the card holds more than before; true where no one else came or went
            process = max(0, self.after.used_bytes - self.before.used_bytes)
        return process, max(0, process - self.reserved_then)

    def _environment(self) -> Environment:
        versions = {"python": platform.python_version()}
        for name in ("vramplan", *NEEDED):
            with suppress(PackageNotFoundError):
                versions[name] = version(name)
        where = Environment(
            device="cpu",
            total_bytes=0,
            versions=versions,
            allocator_settings=self.request.settings,
            cap_bytes=self.request.cap_bytes,
            ranks=self.job.num_gpus,
        )
        if self.device.type == "cpu":
            return where
        properties = torch.cuda.get_device_properties(self.device)
        before, held = self.before, 0
        if before is not None:  # some of what counts as used CUDA never sees
            held = max(0, before.used_bytes - (before.total_bytes - properties.total_memory))
        return where.model_copy(
            update={
                "device": properties.name,
                "total_bytes": properties.total_memory,
                "compute_capability": f"{properties.major}.{properties.minor}",
                "driver": before.driver if before else None,
                "cuda": torch.version.cuda,
                "allocator_settings": os.environ.get("PYTORCH_ALLOC_CONF")
                or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
                or "",
                "held_by_others_bytes": held,
            }
        )


def _counts(module: torch.nn.Module) -> tuple[int, int]:
    """Parameters of the model without adapters, and those that train."""
    own = own_parameters(module).values()
    return sum(p.numel() for p in own), sum(p.numel() for p in module.parameters() if p.requires_grad)


def _on_host(example: Any) -> Any:
    if isinstance(example, Mapping):
        return {name: one.cpu() for name, one in example.items()}
    return None if example is None else tuple(one.cpu() for one in example)


def filler(subject: Subject, job: Job) -> Callable[[Inputs], Inputs]:
    """What puts values into a batch, in place: random ids, a padded end, two documents in a packed row."""
    if subject.example is not None:
        own = _on_host(subject.example)

        def repeat(inputs: Inputs) -> Inputs:
            names = own if isinstance(own, Mapping) else range(len(own))
            mine: Any = inputs
            for name in names:
                mine[name].view(-1, *own[name].shape).copy_(own[name])
            return inputs

        return repeat
    entries = subject.vocabulary or 1
    if subject.fed is not None:
        return lambda inputs: any_values(inputs, job, entries)

    def fill(inputs: Inputs) -> Inputs:
        assert isinstance(inputs, Mapping)
        ids = inputs["input_ids"]
        if subject.pictures is None:
            ids.random_(0, entries)
        else:  # image tokens stay where they are, and no other becomes one
            own, token = ids == subject.pictures.token_id, subject.pictures.token_id
            ids.random_(0, entries)
            ids[ids == token] = (token + 1) % entries
            ids[own] = token
            inputs[subject.pictures.one.tensors[0].name].normal_()
        inputs["labels"].copy_(inputs["input_ids"])
        if job.batches == "padded" and job.sequence_length > 1:  # one token: the mask is needed, no memory is saved
            inputs["attention_mask"][-1, -1:] = 0
            inputs["labels"][-1, -1:] = -100
        if "position_ids" in inputs:
            first = (job.sequence_length + 1) // 2
            inputs["position_ids"][:, :first] = torch.arange(first)
            inputs["position_ids"][:, first:] = torch.arange(job.sequence_length - first)
        return inputs

    return fill


def any_values(inputs: Inputs, job: Job, entries: int) -> Inputs:
    """Random numbers for a model that is no causal language model; class 0 where it knows no words."""
    assert isinstance(inputs, Mapping)
    for name, one in inputs.items():
        if name == "attention_mask":
            one[-1, -1:] = int(job.batches != "padded")
        elif one.is_floating_point():
            one.normal_()
        else:
            one.random_(0, entries)
    return inputs


def _no_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in SIGNS_OF_NO_MEMORY)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
