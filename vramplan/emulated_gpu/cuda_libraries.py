"""The CUDA libraries that PyTorch links against: which functions each has, and what implements them here."""

from __future__ import annotations

import re
from pathlib import Path

from vramplan.dataclass import dataclass

SOURCES = Path(__file__).parent / "libraries"


@dataclass(frozen=True, slots=True)
class CudaLibrary:
    """One library."""

    name: str
    """cudart for libcudart.so.13."""
    functions: str
    """A regular expression of its functions' names, matched at the beginning."""
    source: str = "others.c"
    """The file with the functions whose answer matters; the others succeed without work."""
    is_strict: bool = False
    """Whether functions that the source lacks fail by name: those of memory, devices and communication."""
    uses_gpu: bool = False
    """Whether it links against cudart, which counts the memory."""


LIBRARIES = (
    CudaLibrary("cudart", "cuda(?!_)[A-Z]|__cuda", "cudart.c", is_strict=True),
    CudaLibrary("cuda", "cu[A-Z](?!ile)", "cuda.c", is_strict=True, uses_gpu=True),
    CudaLibrary("nvidia-ml", "nvml", "nvml.c", is_strict=True, uses_gpu=True),
    CudaLibrary("nccl", "nccl|pnccl", "nccl.c", is_strict=True, uses_gpu=True),
    CudaLibrary("cublas", "cublas(?!Lt)", "cublas.c"),
    CudaLibrary("cublasLt", "cublasLt", "cublasLt.c"),
    CudaLibrary("cudnn", "cudnn", "cudnn.c"),
    CudaLibrary("cufft", "cufft"),
    CudaLibrary("cufile", "cuFile", is_strict=True),
    CudaLibrary("curand", "curand"),
    CudaLibrary("cusolver", "cusolver"),
    CudaLibrary("cusparse", "cusparse(?!Lt)"),
    CudaLibrary("cusparseLt", "cusparseLt"),
    CudaLibrary("cupti", "cupti"),
    CudaLibrary("nvrtc", "nvrtc"),
    CudaLibrary("nvJitLink", "nvJitLink|__nvJitLink"),
    CudaLibrary("nvshmem_host", "nvshmem", is_strict=True),
    CudaLibrary("nvToolsExt", "nvtx"),
)

RETURNS_SIZE = re.compile("[bB]ufferSize|WorkspaceSize|SpaceSize|StatesSize|GetWorkspace|Algorithm|GetAttribute")
"""Functions that write a size or a choice, which host code allocates or follows: they fail if there is no answer."""
CREATES_HANDLE = re.compile("(?!.*IdentityPermutation).*Create")
"""Functions whose first argument receives a handle."""


def library_of(function: str) -> CudaLibrary | None:
    """The library that has a function; None if none is known."""
    return next((library for library in LIBRARIES if re.match(library.functions, function)), None)


def stub(library: CudaLibrary, function: str) -> str:
    """C code of a function that the library's source lacks."""
    if library.is_strict or RETURNS_SIZE.search(function):
        return f'long {function}(void) {{ return emulated_not_supported("{function}"); }}'
    if CREATES_HANDLE.match(function):
        return f"long {function}(void **handle) {{ return (*handle = calloc(1, 256)) ? 0 : 1; }}"
    return f"long {function}(void) {{ return 0; }}"
