"""Memory besides the model's tensors: library workspaces, the CUDA context, communication buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.memory.calibration import context
from vramplan.memory.estimate import Term
from vramplan.memory.timeline import Storage
from vramplan.units import MiB

CUDA_CONTEXT_BYTES = 460 * MiB
"""For the context and loaded kernels on a GPU whose threads are not known: 300 to 426 MiB are reported for single
GPUs (pytorch#107667, #109888, unsloth-zoo#1053), more as kernels load lazily."""

NCCL_NVLINK_BYTES = {2: 544 * MiB}
NCCL_NVLINK_MORE_BYTES = 688 * MiB
"""Buffers of a communicator over NVLink, for two GPUs and for more: nccl#964, measured on four A100."""
NCCL_PCIE_BYTES = 128 * MiB
"""Over PCIe NCCL opens few channels, of 10 MiB each way (nccl#1685): 92 and 176 MiB beyond the context on eight RTX
3080 (trl#3436) and on RTX 4090 (DeepSeek-V3#205), by tests/outside.jsonl."""
RCCL_BYTES = 1024 * MiB
"""AMD's RCCL: about 1 GiB for the first communicator (LUMI-AI-Guide#111)."""

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


def ddp_first_buckets(gradients: Iterable[tuple[str, int]]) -> list[Storage]:
    """The buckets of DistributedDataParallel's first backward: one for each dtype of all gradients.

    Their order is known only after it (torch 2.13, nn/parallel/distributed.py: _ddp_init_helper). `gradients` are
    (dtype, bytes) of each.
    """
    sizes: Counter[str] = Counter()
    for dtype, num_bytes in gradients:
        sizes[dtype] += num_bytes
    label = "DDP gradient bucket of the first backward"
    return [Storage(size, "communication", label, f"all gradients in {dtype}") for dtype, size in sizes.items()]


def ddp_buckets(gradients: Sequence[int]) -> list[Storage]:
    """DistributedDataParallel's buckets: a second copy of every gradient (gradient_as_bucket_view is off).

    `gradients` are their bytes in the order of the parameters. They replace the first ones before the forward that
    follows (_rebuild_buckets).
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


def nccl_bytes(job: Job, gpu: Gpu) -> int:
    """Bytes of a communicator's buffers, which PyTorch does not allocate: a constant by what connects the GPUs."""
    return 0 if job.processes == 1 else _buffers(job.processes, gpu)


def _buffers(gpus: int, gpu: Gpu) -> int:
    if gpu.vendor == "AMD":
        return RCCL_BYTES
    if gpu.link != "nvlink":
        return NCCL_PCIE_BYTES
    return NCCL_NVLINK_BYTES.get(gpus, NCCL_NVLINK_MORE_BYTES)


def context_bytes(gpu: Gpu) -> int:
    """Bytes of CUDA's context and kernels: as measured on this GPU, else by published figures."""
    return (context(gpu) or (CUDA_CONTEXT_BYTES, ""))[0]


def outside_terms(job: Job, gpu: Gpu) -> list[Term]:
    """Memory outside of PyTorch's allocator: as measured on this GPU, else by published figures."""
    size, source = context(gpu) or (CUDA_CONTEXT_BYTES, "not measured on this GPU")
    terms = [Term("context", "CUDA context and kernels", size, formula=source, source="see calibration.py")]
    if nccl := nccl_bytes(job, gpu):
        terms.append(Term("context", "NCCL buffers", nccl, formula="not measured", source="see overheads.py"))
    sharing = (*job.verl.sharing, *job.swift.sharing)  # groups of its own for each of verl's models
    if shared := sum(_buffers(gpus, gpu) for gpus in sharing):
        label = "NCCL buffers of GPUs that share tokens"
        terms.append(Term("context", label, shared, formula="not measured", source="see overheads.py"))
    if job.openrlhf.processes:
        others = job.openrlhf.processes * (size + nccl_bytes(job, gpu))
        text = f"{job.openrlhf.processes}, each with CUDA's context and NCCL's buffers; not measured"
        label = "other processes with a model"
        terms.append(Term("context", label, others, formula=text, source="see overheads.py"))
    return terms


def outside_bytes(job: Job, gpu: Gpu) -> int:
    """Bytes of :func:`outside_terms` together."""
    return sum(term.num_bytes for term in outside_terms(job, gpu))
