"""Platforms: what differs from a GPU under Linux, and what is not known of GPUs other than NVIDIA's.

Under Windows and WSL 2 the display driver model (WDDM) lies between CUDA and the GPU. CUDA's total is the whole board's
memory there, but not all of it can be used.
"""

from __future__ import annotations

from typing import NamedTuple

from vramplan.errors import ConfigError, UnknownNameError, setting
from vramplan.inputs.gpu import Gpu

WDDM_SHARE = 0.10
"""Share of the board's memory that Windows and its desktop are taken to hold. Reported: about 10% under WDDM 2
(tensorflow#22623), 3.2 of 22 GiB under Windows 10 (ollama#9167), 5% of an RTX 3070, as the budget that Windows grants a
process (xyntetik-runner#105)."""
WSL_PINNED = "pinned host memory is limited (NVIDIA, CUDA on WSL User Guide: known limitations), which offload needs"
FALLBACK = (
    "beyond that NVIDIA's driver may move memory to the host instead of failing (CUDA - Sysmem Fallback Policy, from"
    " driver 536.40 on), and steps take many times longer"
)


class Platform(NamedTuple):
    """What a platform does to the memory of an NVIDIA GPU."""

    title: str
    share: float
    """Share of the board's memory that a process cannot use."""
    note: str


PLATFORMS = {
    "linux": Platform("Linux", 0.0, ""),
    "windows": Platform("Windows", WDDM_SHARE, FALLBACK),
    "wsl2": Platform("WSL 2", WDDM_SHARE, f"{FALLBACK}; {WSL_PINNED}"),
}

UNKNOWN_OF = {
    "AMD": "the estimate is a guess on {title}: PyTorch's allocator is the same under ROCm, but the context, hipBLAS'"
    " workspaces and what attention kernels allocate are not known; CUDA's are assumed",
    "Huawei": "the estimate is a guess on {title}: torch_npu has an allocator, attention kernels and a context of its"
    " own, which are not known; CUDA's are assumed",
    "Intel": "the estimate is a guess on {title}: the allocator, the attention kernels and the context of PyTorch's XPU"
    " backend are not known; CUDA's are assumed",
    "Apple": "the estimate is a guess on {title}: the allocator of PyTorch's MPS backend and its kernels' memory are"
    " not known, CUDA's are assumed; macOS and other programs use the same memory",
}
"""What is not known of a vendor's GPUs."""


def platform_notes(gpu: Gpu) -> list[str]:
    """What is a guess on this GPU and platform, to be said beside a verdict."""
    notes = []
    if gpu.vendor in UNKNOWN_OF:
        notes.append(UNKNOWN_OF[gpu.vendor].format(title=gpu.title))
    if gpu.platform_note:
        notes.append(gpu.platform_note)
    return notes


def on_platform(gpu: Gpu, name: str | None) -> Gpu:
    """The GPU as a process under this platform sees it; None is Linux, or for an Apple GPU macOS.

    Raises:
        UnknownNameError: for an unknown platform, or one that the GPU does not run under.
    """
    if name is None:
        return gpu
    key = name.lower()
    if gpu.platform not in ("linux", "macos", key):
        raise ConfigError(f"{setting('platform', name)}: {gpu.title} is on another platform already")
    if gpu.vendor == "Apple" or key not in PLATFORMS:
        known = ("macos",) if gpu.vendor == "Apple" else tuple(PLATFORMS)
        if key in known:
            return gpu
        raise UnknownNameError("platform", name, known, f"known for {gpu.title}: {', '.join(known)}")
    platform = PLATFORMS[key]
    if not platform.share:
        return gpu
    total = gpu.driver_total_bytes  # under WDDM both totals are equal
    reserved = max(0, int(total * platform.share) - gpu.held_bytes)
    note = (
        f"{platform.title}: {platform.share:.0%} of the GPU's memory is left to Windows and its desktop, a guess (5 to"
        f" 15% are reported); {platform.note}"
    )
    return gpu.model_copy(
        update={
            "title": f"{gpu.title} ({platform.title})",
            "cuda_total_bytes": total,
            "cuda_total_source": f"under {platform.title} CUDA's total is the driver's",
            "platform": key,
            "reserved_bytes": reserved,
            "platform_note": "; ".join(filter(None, (gpu.platform_note, note))),
        }
    )


__all__ = ["PLATFORMS", "on_platform", "platform_notes"]
