"""How fast GPUs exchange data: rates that links reach, and the time of a collective operation.

Shares of nominal rates are "busbw" of published nccl-tests over the rate of the link in one direction.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.links import BYTES_PER_GIGABIT

NVLINK_SHARE = 0.78
"""Share of NVLink's rate that rings reach: 0.82 on 8 x H100 and H200 (NVIDIA/nccl-tests issue 212: 370 of 450 GB/s;
stas00/ml-engineering, network/benchmarks/results/all-reduce-8xH200.md: 367.6 without SHARP), 0.67 and more on 8 x A100
(nccl-tests issue 149), 0.69 on a bridge of two A100 PCIe (issue 178), 0.39 on one of two H100 PCIe (NVIDIA/nccl issue
1161)."""
PEER_TO_PEER_SHARE = 0.7
"""Share of PCIe's rate from GPU to GPU: 0.63 on three A100 PCIe (nccl-tests issue 178), 0.63 to 0.79 on A40 (issue 74),
0.82 on four RTX 4090 with a patched driver (tinygrad/open-gpu-kernel-modules issue 36)."""
PCIE_SHARE = 0.33
"""Share of PCIe's rate through the host's memory: 0.32 on A40 without peer-to-peer (nccl-tests issue 74), 0.56 and 0.44
on four and eight RTX 5090 (NVIDIA/nccl issue 1639)."""
NETWORK_SHARE = 0.9
"""Share of a node's network: 0.85 to 0.96 of 4 x 200 Gbit/s InfiniBand (nccl-tests issue 119)."""
HOST_COPY_SHARE = 0.8
"""Share of PCIe's rate of copies between a GPU and pinned memory of the host: a guess, below the 0.88 that copies
between two RTX PRO 6000 reach (voipmonitor/rtx6kpro, hardware/pcie-bandwidth.md)."""
NVLINK_KERNEL_SHARE = 0.22
"""Share of the GPU that NCCL's kernels take from computation beside them: 24 channels over NVLink on a board
(NVIDIA/nccl issue 1161), each on one of an A100's 108 multiprocessors. InternEvo's runs on 8 to 256 A100 are met better
with it than without, and led to it: they are no independent check."""
PCIE_KERNEL_SHARE = 0.06
"""The same over PCIe, or a bridge: 4 to 8 channels (4 in tinygrad/open-gpu-kernel-modules issue 17) of 128."""
CALL_SECONDS = 40e-6
"""Time of a collective operation on few bytes: 40 microseconds for 32 KiB on 8 x H200 (all-reduce-8xH200.md) and on
8 x RTX 4090 (NVIDIA/nccl issue 1530), 32 on two nodes of four H100, 7 on two GPUs."""
HOST_BYTES_PER_SECOND = 100e9
"""Memory bandwidth of the host, which all GPUs of a node share; a guess: four channels of DDR4-3200 have 102 GB/s."""
HOST_BYTES_PER_WEIGHT = 30
"""Bytes that an Adam step on the host moves for each weight: fp32 weight and two states read and written, gradient
read, half-precision weight written."""

MOST_PER_NODE = 8
"""GPUs of the machines that the rates were measured on; more in one machine need a switch of their own (NVL72)."""

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "to_host", "from_host"]
PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""How often a ring passes on the bytes of each collective operation."""


class Group(NamedTuple):
    """GPUs that exchange data with each other."""

    gpus: int
    nodes: int = 1
    """Number of nodes that they are in, as many in each."""
    sharing: int = 1
    """Number of such groups that share the network of a node."""


def group_of(job: Job, between_replicas: bool = False) -> Group:
    """The GPUs that share one set of shards; or those that hold the same shard, one of each replica."""
    replicas = job.fsdp.replicas if job.strategy == "fsdp" else 1
    gpus = job.processes // replicas
    nodes = max(1, job.num_nodes // replicas)
    if not between_replicas:
        return Group(gpus, nodes, max(1, replicas // job.num_nodes))
    return Group(replicas, min(replicas, job.num_nodes), gpus // nodes)


def link_in_node(gpu: Gpu, gpus: int) -> tuple[str, float | None, float]:
    """(name, nominal bytes per second or None, share of it that is reached) of the slowest link of a ring in a node.

    A ring over more GPUs than NVLink connects goes over PCIe as well.
    """
    if gpu.link == "nvlink" and gpus <= gpu.nvlink_gpus:
        return gpu.nvlink_kind, gpu.nvlink_bytes_per_second, NVLINK_SHARE
    if gpu.link == "pcie-p2p" or (gpu.link == "nvlink" and gpu.has_pcie_peer_to_peer):
        return "PCIe from GPU to GPU", gpu.pcie_bytes_per_second, PEER_TO_PEER_SHARE
    return "PCIe through the host's memory", gpu.pcie_bytes_per_second, PCIE_SHARE


def fit_in_nodes(job: Job, gpu: Gpu) -> bool:
    """Whether a machine holds as many GPUs as the job has in each."""
    return job.num_gpus // job.num_nodes <= max(MOST_PER_NODE, gpu.nvlink_gpus)


def rate_in_node(gpu: Gpu, gpus: int) -> float | None:
    """Bytes per second that a ring of GPUs of one node reaches; None if the link's rate is not known."""
    _, nominal, share = link_in_node(gpu, gpus)
    return None if nominal is None else nominal * share


def describe_links(job: Job, gpu: Gpu) -> str:
    """The links that the time of a step assumes, in words; empty if GPUs send each other nothing."""
    if job.processes == 1:
        return ""
    texts, per_node, network = [], job.num_gpus // job.num_nodes, gpu.links.network_bytes_per_second
    name, nominal, share = link_in_node(gpu, per_node)
    if per_node > 1 and nominal is not None:
        texts.append(f"{name} reaches {share:.0%} of {nominal / 1e9:g} GB/s")
    if job.num_nodes > 1 and network is not None:
        texts.append(f"each node's network {NETWORK_SHARE:.0%} of {network / BYTES_PER_GIGABIT:g} Gbit/s")
    return f"time: {', '.join(texts)}" if texts else ""


def kernel_share(gpu: Gpu) -> float:
    """Share of the GPU that kernels of collective operations take."""
    return NVLINK_KERNEL_SHARE if gpu.link == "nvlink" and not gpu.nvlink_is_optional else PCIE_KERNEL_SHARE


def collective_seconds(kind: Kind, num_bytes: int, calls: int, group: Group, gpu: Gpu) -> float | None:
    """Seconds of collective operations on tensors of so many bytes in all; None if a rate is not known.

    A ring of n GPUs moves (n - 1)/n of the bytes over each link, twice for an all-reduce; over several nodes, each byte
    enters every other node once, while the nodes' own links carry what came before.
    """
    if group.gpus == 1:
        return 0.0
    inside = between = 0.0
    if group.gpus > group.nodes:
        rate = rate_in_node(gpu, group.gpus // group.nodes)
        if rate is None:
            return None
        inside = (group.gpus - 1) / group.gpus * num_bytes / rate
    if group.nodes > 1:
        network = gpu.links.network_bytes_per_second
        if network is None:
            return None
        between = group.sharing * (group.nodes - 1) / group.nodes * num_bytes / (network * NETWORK_SHARE)
    return PASSES[kind] * max(inside, between) + calls * CALL_SECONDS


def host_copy_seconds(num_bytes: int, gpu: Gpu) -> float | None:
    """Seconds of copies between a GPU and its host; None if PCIe's rate is not known."""
    if gpu.pcie_bytes_per_second is None:
        return 0.0 if num_bytes == 0 else None
    return num_bytes / (gpu.pcie_bytes_per_second * HOST_COPY_SHARE)
