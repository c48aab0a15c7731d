"""Memory besides the model's tensors: library workspaces, the CUDA context, communication buffers."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.memory.calibration import context
from vramplan.memory.estimate import Term
from vramplan.memory.timeline import Storage
from vramplan.units import MiB

CUDA_CONTEXT_BYTES = 460 * MiB
"""A prior for context and loaded kernels: 300 to 426 MiB are reported for single GPUs (pytorch#107667, #109888,
unsloth-zoo#1053), more as kernels load lazily; 0.45 GiB, give or take 0.15."""

NCCL_BYTES = 512 * MiB
"""A prior for one communicator's buffers outside torch: 0.3 to 1.0 GB are reported (nccl#864, #986, #1685)."""

DDP_FIRST_BUCKET_BYTES = MiB
DDP_BUCKET_BYTES = 25 * MiB
"""torch/nn/parallel/distributed.py: bucket_cap_mb = 25, the first bucket 1 MiB (torch 2.13)."""


def cublas_workspace(gpu: Gpu) -> Storage:
    """The workspace that each thread's cuBLAS handle allocates once, at its first matrix product.

    32 MiB from compute capability 9.0 on, else CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8, 8320 KiB
    (aten/src/ATen/cuda/CublasHandlePool.cpp, torch 2.13).
    """
    size = 32 * MiB if gpu.capability >= (9, 0) else 8320 * 1024
    return Storage(size, "temporary", "cuBLAS workspace", "one per thread: forward, backward", in_kernel=True)


def ddp_buckets(gradients: Sequence[int]) -> list[Storage]:
    """DistributedDataParallel's buckets: a second copy of every gradient (gradient_as_bucket_view is off).

    `gradients` are their bytes in the order of the parameters.
    """
    buckets: list[Storage] = []
    filled = 0
    limit = DDP_FIRST_BUCKET_BYTES
    for num_bytes in reversed(gradients):
        filled += num_bytes
        if filled >= limit:
            buckets.append(
                Storage(filled, "communication", "DDP gradient bucket", "up to 25 MiB, or one larger tensor")
            )
            filled, limit = 0, DDP_BUCKET_BYTES
    if filled:
        buckets.append(Storage(filled, "communication", "DDP gradient bucket", "up to 25 MiB, or one larger tensor"))
    return buckets


def context_bytes(gpu: Gpu) -> int:
    """Bytes of CUDA's context and kernels: as measured on this GPU, else a prior."""
    return (context(gpu) or (CUDA_CONTEXT_BYTES, ""))[0]


def outside_terms(job: Job, gpu: Gpu) -> list[Term]:
    """Memory outside of PyTorch's allocator: as measured on this GPU, else a prior."""
    _, source = context(gpu) or (0, "a prior")
    terms = [Term("context", "CUDA context and kernels", context_bytes(gpu), formula=source, source="see overheads.py")]
    if job.data_parallel > 1:
        terms.append(Term("context", "NCCL buffers", NCCL_BYTES, formula="a prior", source="see overheads.py"))
    return terms


def outside_bytes(job: Job, gpu: Gpu) -> int:
    """Bytes of :func:`outside_terms` together."""
    return sum(term.num_bytes for term in outside_terms(job, gpu))
