"""DeepSpeed's engine around the model, set up as transformers' Trainer and accelerate do (DeepSpeed 0.19)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from vramplan.errors import MissingDependencyError, UnsupportedError, setting
from vramplan.inputs.job import Job
from vramplan.inputs.validation import check_sharing
from vramplan.torch_backend.model.build import ConstructorContext
from vramplan.torch_backend.model.training_loop import MAX_GRAD_NORM, MAX_MICRO_STEPS, Engine, Steps

STAGES = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3}


def load(device: torch.device) -> Any:
    """The module deepspeed, set up for the device.

    Raises:
        MissingDependencyError: if it is not installed.
    """
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    os.environ.setdefault("LOCAL_RANK", str(device.index or 0))  # DeepSpeed reads the variables of a launcher
    try:
        import deepspeed
    except ImportError as error:
        raise MissingDependencyError(
            f'{setting("strategy")} zero0 to zero3: DeepSpeed is missing: pip install "deepspeed"'
        ) from error
    # On CPUs it would compile its own reduction through shared memory, whose name is the same for all runs of a user:
    # two runs at once wait for each other for ever. GPUs never use it.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def settings(job: Job, hidden_size: int | None = None) -> dict[str, Any]:
    """DeepSpeed's configuration; `hidden_size` sets the bucket sizes that transformers fills in for "auto".

    Raises:
        ConfigError: for autocast, which DeepSpeed's mixed precision replaces.
        UnsupportedError: for offload, which is not probed yet.
    """
    check_sharing(job)
    if job.offload != "none":
        raise UnsupportedError(f"{setting('offload', job.offload)} is not probed yet")
    stage = STAGES[job.strategy]
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": job.zero.overlap_comm}
    sizes = job.zero if hidden_size is None else job.zero.of_width(hidden_size)
    zero["reduce_bucket_size"] = sizes.reduce_bucket_size
    if stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": sizes.prefetch_bucket_size,
            "stage3_param_persistence_threshold": sizes.param_persistence_threshold,
            "stage3_max_live_parameters": sizes.max_live_parameters,
            "stage3_max_reuse_distance": sizes.max_reuse_distance,
            "sub_group_size": sizes.sub_group_size,
        }
    zero = {name: value for name, value in zero.items() if value is not None}
    return {
        "train_micro_batch_size_per_gpu": job.micro_batch_size,
        "gradient_accumulation_steps": min(MAX_MICRO_STEPS, job.gradient_accumulation_steps),
        "bf16": {"enabled": job.dtype == "bf16"},
        "fp16": {"enabled": job.dtype == "fp16"},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": MAX_GRAD_NORM if job.loop == "trainer" else 0.0,
    }


def constructor_context(job: Job, device: torch.device) -> ConstructorContext:
    """The context of a model's constructor: at stage 3 each weight is sharded as soon as it is created."""
    if job.strategy != "zero3":
        return nullcontext
    return partial(_sharded_init, load(device).zero.Init(config_dict_or_path=settings(job)))


@contextmanager
def _sharded_init(init: AbstractContextManager[Any]) -> Iterator[None]:
    """As transformers' from_pretrained at stage 3: without initial values; a rank may have no part of a weight."""
    from transformers.initialization import no_init_weights

    with no_init_weights(), init:
        yield


def engine_for(steps: Steps, job: Job, device: torch.device) -> Engine:
    """DeepSpeed's engine with the model and optimizer of `steps`."""
    config: Any = getattr(steps.subject.module, "config", None)
    width = getattr(config.get_text_config(), "hidden_size", None) if hasattr(config, "get_text_config") else None
    for weight in steps.subject.module.parameters():
        if hasattr(weight, "ds_tensor"):  # this rank's shard of a weight, which has no values yet
            weight.ds_tensor.data.normal_(0.0, 0.02)
    engine, *_ = load(device).initialize(
        model=steps.subject.module, optimizer=steps.optimizer, config=settings(job, width), dist_init_required=False
    )
    return engine
