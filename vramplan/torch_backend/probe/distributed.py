"""Several processes that train together, each on a card of its own: the job's strategy put around the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import nn

from vramplan.errors import ConfigError
from vramplan.inputs.job import Job
from vramplan.memory.measurement import UNDER_TORCHRUN, Measured, Request, fullest
from vramplan.torch_backend.dtypes import DTYPES

PATIENCE = timedelta(minutes=5)
"""How long a rank waits for the others: one that ran out of memory never comes."""

Alone = Callable[[], AbstractContextManager[None]]


@contextmanager
def together(request: Request, device: torch.device) -> Iterator[None]:
    """Within, the job's ranks can talk to each other."""
    if request.job.num_gpus == 1:
        yield
        return
    import torch.distributed as distributed

    if not distributed.is_initialized():
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=request.meeting_point,
            rank=request.rank,
            world_size=request.job.num_gpus,
            timeout=PATIENCE,
            device_id=device if device.type == "cuda" else None,
        )
    try:
        yield
    finally:
        distributed.destroy_process_group()


def agree(request: Request, measured: Measured) -> Measured:
    """One answer for all: under torchrun the ranks tell each other, elsewhere whoever started them does this.

    A rank that ran out of memory tells nobody: the others still wait for it inside their step.
    """
    if request.meeting_point != UNDER_TORCHRUN or measured.outcome == "oom":
        return measured
    import torch.distributed as distributed

    answers: list[Measured] = [measured] * request.job.num_gpus
    distributed.all_gather_object(answers, measured)
    return fullest(answers)


def wrap(module: nn.Module, job: Job, device: torch.device) -> tuple[nn.Module, Alone]:
    """The model as its ranks call it, and what goes around micro-steps whose gradients are not summed yet.

    Raises:
        ConfigError: where FSDP cannot take the model.
    """
    if job.num_gpus == 1:
        return module, nullcontext
    if job.strategy == "ddp":
        return _ddp(module, device)
    if job.strategy == "fsdp":
        return _fsdp(module, job, device)
    return module, nullcontext  # DeepSpeed's engine takes the optimizer too: zero.py


def _ddp(module: nn.Module, device: torch.device) -> tuple[nn.Module, Alone]:
    """As transformers' Trainer wraps it (trainer.py, create_accelerator_and_postprocess): all of DDP's own defaults.

    It looks for unused parameters unless activations are checkpointed; that is an option of time, not of memory.
    """
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(module, device_ids=[device.index] if device.type == "cuda" else None)
    return wrapped, wrapped.no_sync


def _fsdp(module: nn.Module, job: Job, device: torch.device) -> tuple[nn.Module, Alone]:
    """FSDP2: every layer, then the rest, as accelerate shards them (fsdp2_prepare_model).

    A model on meta gets its shards on the device, with random values: no rank ever holds all of it.

    Raises:
        ConfigError: for adapters in another dtype than the weights, which FSDP cannot gather together.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    kinds = {p.dtype for p in module.parameters()}
    if len(kinds) > 1:
        names = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise ConfigError(
            f"--strategy fsdp gathers weights of one dtype, here are {names}; give --lora-dtype {job.dtype}"
        )
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[job.autocast] if job.autocast != "none" else None)
    inner: Any = module.get_base_model() if hasattr(module, "get_base_model") else module
    layers = set(getattr(inner, "_no_split_modules", None) or ())
    for one in list(module.modules()):
        if type(one).__name__ in layers:
            fully_shard(one, mp_policy=policy)
    fully_shard(module, mp_policy=policy)
    assert isinstance(module, FSDPModule)
    sharded: Any = module
    if any(p.is_meta for p in module.parameters()):
        module.to_empty(device=device)
        inner.tie_weights()
        with torch.no_grad():
            for weight in module.parameters():
                local: Any = weight
                local.to_local().normal_(0.0, 0.02)
            for buffer in module.buffers():  # rotary tables and the like: any finite values will do
                buffer.fill_(1)

    @contextmanager
    def alone() -> Iterator[None]:
        sharded.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            sharded.set_requires_gradient_sync(True)

    return module, alone
