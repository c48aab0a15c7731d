"""A GPU: memory as its driver and CUDA report it, rates of computation, and links to other GPUs."""

from __future__ import annotations

from vramplan.inputs.links import Link, Links
from vramplan.inputs.record import Record, field
from vramplan.units import MiB

_THREADS_PER_MULTIPROCESSOR = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
"""Of the compute capabilities that differ from 2048."""
MOST_MULTIPROCESSORS = 304
"""Of the GPUs that PyTorch runs on (MI300X); stands for an unknown number, since more never need less memory."""


class Gpu(Record):
    """One GPU model."""

    name: str = field(min_length=1)
    """Short name, such as rtx4090 or a100-80gb."""
    title: str
    """The manufacturer's name for it."""
    aliases: tuple[str, ...] = ()
    """Other names that find it."""
    vendor: str
    """NVIDIA, AMD, Huawei, Intel or Apple."""
    compute_capability: str | None = None
    """CUDA compute capability, such as 8.9; None for other vendors."""
    multiprocessors: int | None = None
    """Streaming multiprocessors, torch.cuda.get_device_properties(0).multi_processor_count; None if not known."""
    driver_total_bytes: int = field(gt=0)
    """Total memory as nvidia-smi lists it."""
    cuda_total_bytes: int = field(gt=0)
    """torch.cuda.get_device_properties(0).total_memory: the memory that a process can see."""
    cuda_total_source: str
    """observed (seen in public logs) or derived from the driver's total by the usual gap."""
    bandwidth_bytes_per_second: float = field(gt=0)
    """Memory bandwidth."""
    flops_per_second: dict[str, float]
    """Dense matrix rates by dtype (fp32, fp16, bf16, fp8), that the GPU supports."""
    form: str = ""
    """desktop, laptop, workstation, data center or unified memory (a computer in which CPU and GPU share memory)."""
    power_watts: int | None = None
    """Power limit as it is sold; None if it is not known."""
    pcie_bytes_per_second: float | None = None
    """Nominal rate of its PCIe lanes in one direction; None if it is not known, or it has none."""
    nvlink_bytes_per_second: float | None = None
    """Nominal rate of its direct links to other GPUs in one direction, all links together (NVLink, Infinity Fabric,
    HCCS); None if it has none, or it is not known."""
    nvlink_kind: str = ""
    """What they are, such as NVLink 4, or a bridge over two boards."""
    nvlink_gpus: int = 0
    """Number of GPUs that they connect: 2 with a bridge, 8 on an SXM board."""
    nvlink_is_optional: bool = False
    """Whether not every machine has them: a bridge is sold separately."""
    sources: tuple[str, ...] = ()
    """Where the figures were read."""
    confidence: str = ""
    """verified, single-source or inferred."""
    held_bytes: int = field(default=0, ge=0)
    """Memory that other processes hold now (only for the GPU in this machine)."""
    rates_from: str = ""
    """Title of the GPU whose rates of computation stand in for this one's, which are not known; "" for its own."""

    links: Links = Links()
    """What was given of the links between GPUs."""
    platform: str = "linux"
    """linux, windows, wsl2 or macos (:mod:`vramplan.inputs.platforms`)."""
    reserved_bytes: int = field(default=0, ge=0)
    """Memory that the platform is taken to keep for itself."""
    platform_note: str = ""
    """What is a guess about the board or the platform."""

    margin_confidence: float = field(default=0.0, ge=0.0, lt=1.0)
    """Share of runs that plans are to hold for: they leave a safety margin free for the error of an estimate."""

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability as (major, minor); (0, 0) for other vendors."""
        if not self.compute_capability:
            return 0, 0
        major, _, minor = self.compute_capability.partition(".")
        return int(major), int(minor)

    @property
    def threads_per_multiprocessor(self) -> int:
        """Threads that run on a multiprocessor at once (CUDA C++ Programming Guide, table of compute capabilities)."""
        return _THREADS_PER_MULTIPROCESSOR.get(self.capability, 2048)

    @property
    def runs_flash(self) -> bool:
        """Whether the flash kernels run (compute capability 8.0; other vendors have their own)."""
        return self.vendor not in ("NVIDIA", "Apple") or self.capability >= (8, 0)

    def supports(self, dtype: str) -> bool:
        """Whether the hardware computes in `dtype`; bf16 needs compute capability 8.0 on NVIDIA GPUs."""
        return dtype == "fp32" or self.flops_per_second.get(dtype, 0.0) > 0.0

    @property
    def has_pcie_peer_to_peer(self) -> bool:
        """Whether GPUs copy to each other over PCIe directly, and not through the host's memory.

        NVIDIA's driver lets no GeForce do so since Turing (NVIDIA/nccl-tests issue 117: an RTX 2080 Ti "CANNOT Access
        Peer"; tinygrad/open-gpu-kernel-modules adds it to the driver for the RTX 4090 and 5090); workstation and data
        center GPUs do.
        """
        if self.form in ("workstation", "data center"):
            return True
        return self.form == "desktop" and self.vendor == "NVIDIA" and self.capability < (7, 5)

    @property
    def link(self) -> Link:
        """What the GPUs of a node exchange data over: the link that was given, or what every such machine has."""
        if self.links.link is not None:
            return self.links.link
        if self.nvlink_bytes_per_second is not None and not self.nvlink_is_optional:
            return "nvlink"
        return "pcie-p2p" if self.has_pcie_peer_to_peer else "pcie"

    @property
    def usable_bytes(self) -> int:
        """Bytes that a process may take: what CUDA sees, less what other processes and the platform hold."""
        return self.cuda_total_bytes - self.held_bytes - self.reserved_bytes

    @property
    def total_mib(self) -> int:
        """The driver's total in MiB, for tables."""
        return self.driver_total_bytes // MiB
