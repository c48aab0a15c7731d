"""The installed PyTorch, read without importing it: its version, its CUDA version, the functions that it calls."""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, MissingDependencyError, UnsupportedError

OLDEST = (2, 6)
"""Versions 2.6 to 2.13 were built and run; older ones need functions that are not implemented."""
MACHINES = ("x86_64", "aarch64")
CALLERS = ("bitsandbytes", "flash_attn", "xformers", "torchao", "deepspeed", "transformer_engine")
"""Packages whose own libraries call CUDA, too."""
HOW_TO_GET = (
    "On Linux, `pip install --force-reinstall --no-deps torch` installs the CUDA build from the default package index;"
    " NVIDIA's own libraries (2 GB) are not needed here"
)


@dataclass(frozen=True, slots=True)
class InstalledTorch:
    """PyTorch's CUDA build, as it is installed."""

    folder: Path
    """The package's folder."""
    version: str
    cuda: str
    """The CUDA version that it was built for, such as 13.0."""

    @property
    def cuda_major(self) -> int:
        """The number in the names of CUDA's libraries."""
        return int(self.cuda.partition(".")[0])

    def required_version(self, package: str) -> tuple[int, ...]:
        """The version of an NVIDIA package that it depends on, such as nvidia-cudnn; () if that is not stated."""
        for line in metadata.requires("torch") or ():
            match = re.match(rf"{package}(?:-cu\d+)?\s*\(?==\s*([\d.]+)", line)
            if match:
                return tuple(int(number) for number in match[1].rstrip(".").split("."))
        return ()


def find() -> InstalledTorch:
    """The PyTorch of this environment.

    Raises:
        MissingDependencyError: if it is not installed.
        ConfigError: if it is a build without CUDA.
        UnsupportedError: if its version, this operating system or this machine is not supported.
    """
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        raise UnsupportedError(
            f"GPUs are emulated on Linux for {' and '.join(MACHINES)}; this is {platform.system()} {platform.machine()}"
        )
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise MissingDependencyError(f"an emulated GPU runs PyTorch's CUDA build, which is not installed. {HOW_TO_GET}")
    folder = Path(spec.origin).parent
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read ({error.strerror})") from error
    version = re.search(r"__version__\s*=\s*'([^']+)'", text)
    cuda = re.search(r"^cuda[^=\n]*=\s*'([\d.]+)'", text, re.MULTILINE)
    name = version[1] if version else "of unknown version"
    if cuda is None:
        raise ConfigError(f"torch {name} is built without CUDA. {HOW_TO_GET}")
    numbers = tuple(int(number) for number in re.findall(r"\d+", name)[:2])
    if numbers < OLDEST:
        raise UnsupportedError(f"torch {name}: GPUs are emulated for PyTorch {'.'.join(map(str, OLDEST))} and later")
    if cuda[1].partition(".")[0] not in ("12", "13"):
        raise UnsupportedError(f"torch {name} is built for CUDA {cuda[1]}: GPUs are emulated for CUDA 12 and 13")
    return InstalledTorch(folder, name, cuda[1])


def called_functions(torch: InstalledTorch) -> dict[str, str]:
    """Functions that PyTorch's libraries, and those of `CALLERS`, take from elsewhere, with their version nodes.

    The node is "" for a function without one.

    Raises:
        ConfigError: if `nm` is missing.
    """
    files = list((torch.folder / "lib").glob("*.so"))
    for package in CALLERS:
        files += [path for path in (torch.folder.parent / package).rglob("*.so") if _has_number(path, torch)]
    functions: dict[str, str] = {}
    for path in files:
        for line in run_tool("nm", "-D", "--undefined-only", path).splitlines():
            name, _, node = line.split()[-1].partition("@")
            functions[name] = functions.get(name) or node.lstrip("@")
    return {**dict.fromkeys(_named_functions(torch), ""), **functions}


def _named_functions(torch: InstalledTorch) -> list[str]:
    """Functions of the driver and of NVML that PyTorch looks up by name (c10/cuda/driver_api.cpp)."""
    content = (torch.folder / "lib" / "libc10_cuda.so").read_bytes()
    return [name.decode() for name in re.findall(rb"\0((?:cu[A-Z]|nvml[A-Z])[A-Za-z0-9_]+)(?=\0)", content)]


def needed_libraries(torch: InstalledTorch) -> set[str]:
    """Names of the shared libraries that PyTorch's libraries are linked to, such as libcudart.so.13."""
    names: set[str] = set()
    for path in (torch.folder / "lib").glob("*.so"):
        names |= set(re.findall(r"\(NEEDED\).*\[(.+)\]", run_tool("readelf", "-d", path)))
    return names


def run_tool(name: str, *arguments: object) -> str:
    """The output of a program of the compiler's tools.

    Raises:
        ConfigError: if it is not installed, or fails.
    """
    if shutil.which(name) is None:
        raise ConfigError(f"{name} is not installed: emulating a GPU needs a C compiler with its tools (gcc, binutils)")
    result = subprocess.run([name, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode:
        raise ConfigError(f"{name} fails: {first_lines(result.stderr) or f'exit code {result.returncode}'}")
    return result.stdout


def first_lines(text: str, count: int = 3) -> str:
    """The first lines of a tool's messages, in one line."""
    return " ".join(line.strip() for line in text.strip().splitlines()[:count])


def _has_number(path: Path, torch: InstalledTorch) -> bool:
    """Whether a library is for this CUDA: packages such as bitsandbytes ship one for each version."""
    number = re.search(r"cuda(\d\d)\d", path.name)
    return number is None or int(number[1]) == torch.cuda_major


def unknown(functions: Iterable[str]) -> list[str]:
    """Those that look like CUDA's but belong to no known library."""
    from vramplan.emulated_gpu.cuda_libraries import library_of

    pattern = re.compile(r"(cuda|cublas|cudnn|cu[A-Z]|nccl|nvml|nvtx|nvrtc|nvshmem|cupti)")
    return [name for name in functions if pattern.match(name) and library_of(name) is None]
