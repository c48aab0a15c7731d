"""Which jobs a probe runs, and which the memory of the host suffices for."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from vramplan.errors import ConfigError, MissingDependencyError, UnsupportedError, VramplanError, setting
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import inputs_of
from vramplan.inputs.model_spec import IMPORT_PATH, ModelSpec
from vramplan.inputs.task_rules import TRL_TASKS
from vramplan.memory.estimate import Estimate
from vramplan.units import format_bytes


def check_method(spec: ModelSpec, job: Job, device_type: str) -> None:
    """Refuse what a probe cannot run on a device of this type.

    Raises:
        UnsupportedError: naming the setting.
    """
    if job.task in TRL_TASKS:
        raise UnsupportedError(f"{setting('task', job.task)} is not probed: a probe runs no trainer of TRL's")
    if job.quantize != "none":
        _check_quantized(spec, job, device_type)
    if job.lengths is not None and (spec.model_type == IMPORT_PATH or inputs_of(spec.model_type, job.task, spec.name)):
        raise UnsupportedError(f"{setting('lengths')} is probed for causal language models alone")
    if job.strategy == "device_map":
        raise UnsupportedError(f"{setting('strategy', job.strategy)} is not probed yet")
    if job.strategy == "fsdp" and job.fsdp.version == 1:
        raise UnsupportedError(f"{setting('fsdp', 'version=1')} is not probed yet, version 2 is")
    if job.strategy != "ddp" and device_type == "cpu":
        raise UnsupportedError(
            f"{setting('strategy', job.strategy)} {setting('device', 'cpu')}: sharded tensors cannot be followed"
            " on the host"
        )
    if job.attention == "flash" and device_type == "cpu":
        raise UnsupportedError(
            f"{setting('attention', 'flash')} {setting('device', 'cpu')}: FlashAttention runs on CUDA GPUs only"
        )


def check_packages(job: Job) -> None:
    """Refuse a job that needs a package which is not installed, before a process is started for it.

    Raises:
        MissingDependencyError: naming the setting and the package.
    """
    needed = {
        "deepspeed": ("deepspeed", setting("strategy", job.strategy) if job.uses_deepspeed else ""),
        "flash_attn": ("flash-attn", setting("attention", job.attention) if job.attention == "flash" else ""),
        "bitsandbytes": ("bitsandbytes", setting("quantize", job.quantize) if job.quantize != "none" else ""),
    }
    for module, (package, used) in needed.items():
        if used and find_spec(module) is None:
            raise MissingDependencyError(f"{used} needs {package}: pip install {package}")


def _check_quantized(spec: ModelSpec, job: Job, device_type: str) -> None:
    if device_type == "cpu":
        raise UnsupportedError(
            f"{setting('quantize', job.quantize)} {setting('device', 'cpu')}: bitsandbytes' kernels for CUDA allocate"
            " otherwise than those for the host"
        )
    if job.shards_weights:
        raise UnsupportedError(
            f"{setting('strategy', job.strategy)} {setting('quantize', job.quantize)}: sharded quantized weights are"
            f" not probed yet; use {setting('strategy', 'ddp')} or zero2"
        )
    if spec.model_type == IMPORT_PATH:
        raise UnsupportedError(f"{setting('quantize', job.quantize)}: a model of your own quantizes its layers itself")


def check_host(job: Job, predict: Callable[[], Estimate | None]) -> None:
    """Refuse a run whose tensors the host's memory cannot hold, as far as both are known.

    Raises:
        ConfigError: with what is needed and what is free.
    """
    try:
        predicted, free = predict(), free_memory()
    except VramplanError:  # the run itself reports it
        return
    if predicted is not None and free is not None and predicted.peak_tensor_bytes > free:
        raise ConfigError(
            f"{setting('device', 'cpu')}: micro-batch {job.micro_batch_size} needs"
            f" {format_bytes(predicted.peak_tensor_bytes)} of the host's memory, {format_bytes(free)} are free"
        )


def free_memory() -> int | None:
    """Bytes of the host's memory that are available; None if /proc/meminfo does not tell."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None
