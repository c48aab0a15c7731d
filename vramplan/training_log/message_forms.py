"""Messages of running out of memory, by form.

A template is the message's text with names of figures in braces. Parts in square brackets may lack. Texts and their
versions are those of the files named, and for PyTorch's allocators of the strings in libc10_cuda.so of 1.13.1, 2.0.1,
2.1.2, 2.2.2, 2.3.1, 2.4.1, 2.5.1, 2.6.0, 2.7.1, 2.8.0, 2.9.1, 2.10.0, 2.11.0, 2.12.0 and 2.13.0. The exception is
``torch.cuda.OutOfMemoryError`` up to 2.3 and ``torch.OutOfMemoryError`` from 2.4 on; no message depends on its name.
"""

from __future__ import annotations

import re

from vramplan.dataclass import dataclass
from vramplan.training_log.amount import PATTERN
from vramplan.training_log.record import Memory

_ALLOCATOR = "c10/cuda/CUDACachingAllocator.cpp"
_PROCESSES = rf"(?:(?:Including non-PyTorch memory, this process|Process \d{{1,10}}) has {PATTERN} memory in use\. )"


@dataclass(frozen=True, slots=True)
class MessageForm:
    """One wording."""

    name: str
    versions: str
    """Which PyTorch or library writes it, in words."""
    marker: str
    """Text that every message of the form has, from the first words on."""
    template: str
    """From the marker on."""
    source: str
    memory: Memory = "gpu"


FORMS: tuple[MessageForm, ...] = (
    MessageForm(
        "allocator with total capacity",
        "PyTorch 1.4 to 2.0, CUDA and ROCm; XPU extensions without the free memory",
        "out of memory. Tried to allocate ",
        "Tried to allocate {requested} (GPU {gpu}; {capacity} total capacity; {allocated} already allocated; "
        "[{free} free; ][{allowed} allowed; ]{reserved} reserved in total by PyTorch)",
        _ALLOCATOR,
    ),
    MessageForm(
        "allocator with processes",
        "PyTorch 2.1 (spelled capacty) to 2.13, from 2.4 on with private pools; CUDA, ROCm and XPU (without processes)",
        "out of memory. Tried to allocate ",
        "Tried to allocate {requested}. GPU {gpu} has a total capac?ity of {capacity}[ of which {free} is free. ]"
        "[. ]{processes}[{allowed} allowed; ]Of the allocated memory {allocated} is allocated by PyTorch, "
        "[with {free_in_private_pools} allocated in private pools (e.g., CUDA Graphs), ]"
        "and {unallocated} is reserved by PyTorch but unallocated",
        f"{_ALLOCATOR}, c10/xpu/XPUCachingAllocator.cpp",
    ),
    MessageForm(
        "allocator, rejected by the memory fraction",
        "PyTorch 2.12 and 2.13 with throw_on_cudamalloc_oom",
        "out of memory. Allocation was preemptively rejected",
        "Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. "
        "Requested size: {requested}",
        _ALLOCATOR,
    ),
    MessageForm(
        "allocator, absurd size",
        "PyTorch 1.13 to 2.13",
        "out of memory. Tried to allocate more than 1EB memory",
        "Tried to allocate more than 1EB memory",
        _ALLOCATOR,
    ),
    MessageForm(
        "cudaMallocAsync",
        "PyTorch 2.0 to 2.13 with backend:cudaMallocAsync",
        "would exceed allowed memory. (out of memory)",
        "would exceed allowed memory. (out of memory) Currently allocated : {allocated} Requested : {requested} "
        "Device limit : {capacity} Free (according to CUDA): {free} "
        "PyTorch limit (set by user-supplied memory fraction) : {allowed}",
        "c10/cuda/CUDAMallocAsyncAllocator.cpp",
    ),
    *(
        MessageForm("allocator, cut", "any PyTorch; the log has lost the rest", marker, marker, _ALLOCATOR)
        for marker in ("CUDA out of memory", "HIP out of memory", "XPU out of memory")
    ),
    MessageForm(
        "MPS",
        "PyTorch 1.13 to 2.13 on macOS",
        "MPS backend out of memory (MPS allocated: ",
        "MPS backend out of memory (MPS allocated: {reserved}, other allocations: {other_allocations}"
        "[, max allowed: {allowed}]). Tried to allocate {requested} on ",
        "aten/src/ATen/mps/MPSAllocator.mm",
    ),
    MessageForm(
        "CUDA",
        "any PyTorch: the driver refused memory outside of PyTorch's allocator",
        "CUDA error: out of memory",
        "CUDA error: out of memory",
        "c10/cuda/CUDAException.cpp",
    ),
    MessageForm(
        "CUDA driver",
        "PyTorch 2.0 to 2.13: the driver refused a page of an expandable segment, or to load a kernel",
        "CUDA driver error: out of memory",
        "CUDA driver error: out of memory",
        "c10/cuda/driver_api.h",
    ),
    MessageForm("HIP", "any PyTorch for ROCm", "HIP error: out of memory", "HIP error: out of memory", "as CUDA"),
    MessageForm(
        "Triton", "any Triton", "Triton Error [CUDA]: out of memory", "Triton Error [CUDA]: out of memory", "driver.c"
    ),
    *(
        MessageForm(library, f"any PyTorch with {library}", status, status, "aten/src/ATen/cuda/Exceptions.h")
        for library, status in (
            ("cuBLAS", "CUBLAS_STATUS_ALLOC_FAILED"),
            ("cuDNN", "CUDNN_STATUS_ALLOC_FAILED"),
            ("cuSOLVER", "CUSOLVER_STATUS_ALLOC_FAILED"),
            ("cuFFT", "CUFFT_ALLOC_FAILED"),
        )
    ),
    MessageForm("NCCL", "any NCCL", "Failed to CUDA calloc", "Failed to CUDA calloc", "nccl src/include/alloc.h"),
    *(
        MessageForm("NCCL's call", versions, marker, marker, "nccl src/include/checks.h")
        for versions, marker in (
            ("NCCL since 2.19", "Cuda failure 2 'out of memory'"),
            ("NCCL before 2.19", "Cuda failure 'out of memory'"),
        )
    ),
    MessageForm(
        "bitsandbytes", "any bitsandbytes", "Error out of memory at line ", "Error out of memory at line ", "ops.cuh"
    ),
    MessageForm(
        "vLLM's cache",
        "any vLLM",
        "No available memory for the cache blocks",
        "No available memory for the cache blocks",
        "vllm/v1/core/kv_cache_utils.py",
    ),
    MessageForm(
        "vLLM's start",
        "any vLLM with V1",
        "on startup is less than desired GPU memory utilization",
        "on startup is less than desired GPU memory utilization",
        "vllm/v1/worker/utils.py",
    ),
    MessageForm(
        "vLLM's sleep mode",
        "any vLLM, where its own allocator takes memory: at the start and at waking up",
        "CUDA Error: out of memory at ",
        "CUDA Error: out of memory at ",
        "csrc/cumem_allocator.cpp",
    ),
    MessageForm(
        "host array",
        "any NumPy",
        "Unable to allocate ",
        "Unable to allocate {requested} for an array",
        "numpy/_core/_exceptions.py",
        "host",
    ),
    MessageForm(
        "host allocation",
        "any PyTorch",
        "DefaultCPUAllocator: ",
        "DefaultCPUAllocator: [can't allocate memory][not enough memory]: you tried to allocate {requested}",
        "c10/core/impl/alloc_cpu.cpp",
        "host",
    ),
    *(
        MessageForm("host, killed", writer, marker, marker, source, "host")
        for writer, marker, source in (
            ("torchrun's summary", "Signal 9 (SIGKILL)", "torch/distributed/elastic/multiprocessing/errors"),
            ("torchrun", "exitcode: -9", "torch/distributed/elastic/multiprocessing/api.py"),
            ("accelerate, DeepSpeed", "died with <Signals.SIGKILL: 9>", "Python's subprocess.py"),
            ("PyTorch's DataLoader", "is killed by signal: Killed", "torch/csrc/DataLoader.cpp"),
            ("Ray", "was killed due to the node running low on memory", "ray/exceptions.py"),
            ("Kubernetes", "OOMKilled", "the state of a container"),
            ("DeepSpeed", "exits with return code = -9", "deepspeed/launcher/launch.py"),
            ("Slurm", "oom_kill event", "slurmstepd"),
            ("Linux", "Out of memory: Killed process", "mm/oom_kill.c"),
        )
    ),
    MessageForm("host, killed", "bash", " Killed   ", "Killed", "jobs.c, strsignal", "host"),
)
"""The first form whose template fits counts."""

MARKERS = tuple(dict.fromkeys(form.marker for form in FORMS))
_HOLES = {"gpu": r"(?:(?P<gpu>\d{1,4})|[\x00\ufffd]?)", "processes": rf"(?P<processes>{_PROCESSES}{{0,256}})"}
_PART = re.compile(r"\[([^\]]*)\]|\{(\w+)\}|([^\[{]+)")


def _literal(text: str) -> str:
    return re.escape(text).replace(r"capac\?ity", "capaci?ty").replace(r"c\?", "c?")


def _hole(name: str) -> str:
    return _HOLES.get(name, f"(?P<{name}>{PATTERN})")


def compile_template(template: str) -> re.Pattern[str]:
    """A pattern that matches a message and each of its beginnings, so that a cut message gives what is left of it.

    Every part follows the previous one at once and has bounded length: the pattern never searches back.
    """
    tail = ""
    for optional, name, literal in reversed(_PART.findall(template)):
        if optional:
            inner = "".join(_hole(hole) if hole else _literal(text) for _, hole, text in _PART.findall(optional))
            tail = f"(?:{inner})?{tail}"
        else:
            tail = f"(?:{_hole(name) if name else _literal(literal)}{tail})?"
    return re.compile(tail)
