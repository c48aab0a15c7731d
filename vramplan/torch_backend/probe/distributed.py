"""Ranks of one job: set up their process group, and wrap the model by the job's strategy (DDP, FSDP)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import nn

from vramplan.errors import ConfigError, setting
from vramplan.inputs.job import Job
from vramplan.memory.measurement import UNDER_TORCHRUN, Measured, Request, fullest
from vramplan.torch_backend.dtypes import DTYPES

TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for the others: one that ran out of memory never answers."""

NoSync = Callable[[], AbstractContextManager[None]]
"""As DistributedDataParallel.no_sync: inside, ranks do not reduce gradients."""


@contextmanager
def process_group(request: Request, device: torch.device) -> Iterator[None]:
    """Inside, the job's ranks are a torch.distributed process group; DeepSpeed has one on a single GPU, too."""
    if request.job.num_gpus == 1 and not request.job.uses_deepspeed:
        yield
        return
    import torch.distributed as distributed

    if not distributed.is_initialized():
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=request.meeting_point,
            rank=request.rank,
            world_size=request.job.num_gpus,
            timeout=TIMEOUT,
            device_id=device if device.type == "cuda" else None,
        )
    try:
        yield
    finally:
        distributed.destroy_process_group()


def agree(request: Request, measured: Measured) -> Measured:
    """The result of all ranks under torchrun; otherwise the process that started the ranks combines them.

    A rank that ran out of memory does not take part: the others still wait for it inside their step.
    """
    if request.meeting_point != UNDER_TORCHRUN or measured.outcome == "oom":
        return measured
    import torch.distributed as distributed

    results: list[Measured] = [measured] * request.job.num_gpus
    distributed.all_gather_object(results, measured)
    return fullest(results)


def wrap(module: nn.Module, job: Job, device: torch.device) -> tuple[nn.Module, NoSync]:
    """The model as its ranks call it, and the context of micro-steps whose gradients are not reduced yet.

    Raises:
        ConfigError: if FSDP cannot wrap the model.
    """
    if job.num_gpus == 1:
        return module, nullcontext
    if job.strategy == "ddp":
        return _ddp(module, device)
    if job.strategy == "fsdp":
        return _fsdp(module, job, device)
    return module, nullcontext  # DeepSpeed's engine takes the optimizer too: see deepspeed.py


def _ddp(module: nn.Module, device: torch.device) -> tuple[nn.Module, NoSync]:
    """As transformers' Trainer wraps it (trainer.py, create_accelerator_and_postprocess): all of DDP's defaults.

    The Trainer sets find_unused_parameters unless activations are checkpointed; that costs time, not memory.
    """
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(module, device_ids=[device.index] if device.type == "cuda" else None)
    return wrapped, wrapped.no_sync


def _fsdp(module: nn.Module, job: Job, device: torch.device) -> tuple[nn.Module, NoSync]:
    """FSDP2: every layer, embedding and head, then the rest, as accelerate 1.15 shards them (fsdp2_prepare_model).

    A model on the meta device gets its shards on the device, with random values: no rank ever holds the whole model.
    Under mixed precision the weights that train are fp32, and are gathered and reduced in the lower precision
    (dataclasses.py: FullyShardedDataParallelPlugin.set_mixed_precision).

    Raises:
        ConfigError: if the weights that train differ in dtype, which FSDP refuses.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    used = DTYPES[job.autocast] if job.autocast != "none" else None
    if used is not None:
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.float32)
    dtypes = {parameter.dtype for parameter in module.parameters() if parameter.requires_grad}
    if len(dtypes) > 1:
        names = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise ConfigError(
            f"{setting('strategy', 'fsdp')} reduces gradients of one dtype, the weights that train have {names}"
        )
    policy = MixedPrecisionPolicy(param_dtype=used, reduce_dtype=used, output_dtype=used)
    reshard = job.fsdp.reshard_after_forward
    inner: Any = module.get_base_model() if hasattr(module, "get_base_model") else module
    layers = set(getattr(inner, "_no_split_modules", None) or ())
    for submodule in list(module.modules()):
        if type(submodule).__name__ in layers:
            fully_shard(submodule, mp_policy=policy, reshard_after_forward=reshard)
    if job.fsdp.wraps_embeddings:
        embedding, tail = _outside_the_layers(module)
        if embedding is not None:
            fully_shard(embedding, mp_policy=policy, reshard_after_forward=reshard)
        if tail:
            fully_shard(tail, mp_policy=policy, reshard_after_forward=False)
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
            for buffer in module.buffers():  # rotary tables and similar: any finite values
                buffer.fill_(1)

    @contextmanager
    def no_sync() -> Iterator[None]:
        sharded.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            sharded.set_requires_gradient_sync(True)

    return module, no_sync


def _outside_the_layers(model: Any) -> tuple[nn.Module | None, list[nn.Module]]:
    """The embedding, and what is one group: the final norm and the head, with the embedding if it is tied.

    The final norm is the last one right below the base model, which PEFT hides (fsdp_utils.py: _find_final_norm).
    """
    embedding = getattr(model, "get_input_embeddings", lambda: None)()
    head = getattr(model, "get_output_embeddings", lambda: None)()
    prefix = getattr(model, "base_model_prefix", "")
    base = getattr(model, prefix, None) if prefix else model
    norms = [m for m in base.children() if "Norm" in type(m).__name__] if isinstance(base, nn.Module) else []
    is_tied = embedding is not None and head is not None and embedding.weight is head.weight
    tail = [*norms[-1:], *([embedding] if is_tied else []), head]
    return None if is_tied else embedding, [module for module in tail if module is not None]
