"""Build the libraries for the installed PyTorch: once for each version, into the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from vramplan import disk_cache
from vramplan.dataclass import dataclass
from vramplan.emulated_gpu import installed_torch
from vramplan.emulated_gpu.cuda_libraries import LIBRARIES, SOURCES, CudaLibrary, library_of, stub
from vramplan.emulated_gpu.installed_torch import InstalledTorch, run_tool
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.progress import Progress, silent

COMMAND = "vramplan emulate --install"


@dataclass(frozen=True, slots=True)
class Libraries:
    """Built libraries."""

    folder: Path
    torch: InstalledTorch
    paths: tuple[Path, ...]
    """In the order in which they are loaded: those that the others need come first."""


def installed() -> Libraries:
    """The libraries that were built for the installed PyTorch.

    Raises:
        ConfigError: if they were not built yet; names the command.
        VramplanError: if PyTorch's CUDA build is not there (:func:`installed_torch.find`).
    """
    torch = installed_torch.find()
    folder = _folder(torch)
    try:
        sizes = json.loads((folder / "libraries.json").read_text(encoding="utf-8"))
        if any((folder / name).stat().st_size != size for name, size in sizes.items()):
            raise ValueError("a library was damaged")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the libraries that emulate a GPU for torch {torch.version} are not built yet: run `{COMMAND}`"
        ) from error
    return Libraries(folder, torch, tuple(folder / name for name in sizes))


def install(progress: Progress = silent) -> Libraries:
    """Build the libraries for the installed PyTorch, also if they are there.

    Raises:
        ConfigError: without a C compiler, or if the cache folder cannot be written.
        UnsupportedError: if PyTorch needs a library or a function that is not known.
    """
    torch = installed_torch.find()
    compiler = os.environ.get("CC") or next((name for name in ("gcc", "cc", "clang") if shutil.which(name)), "")
    if not compiler or shutil.which(compiler) is None:
        raise ConfigError(f"no C compiler is found ({compiler or 'gcc, cc, clang'}); install one, or name it in $CC")
    progress(f"reading what torch {torch.version} calls", 0.1)
    functions = installed_torch.called_functions(torch)
    sonames = _sonames(torch)
    unknown = installed_torch.unknown(functions)
    if unknown:
        raise UnsupportedError(f"torch {torch.version} calls {unknown[0]}, which the emulated GPU does not know")
    folder = _folder(torch)
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".building-", dir=folder.parent) as work:
            built = Path(work) / "built"
            built.mkdir()
            for number, (soname, library) in enumerate(sonames.items()):
                progress(f"compiling {soname}", 0.2 + 0.8 * number / len(sonames))
                _compile(compiler, torch, library, soname, functions, Path(work), built)
            sizes = {soname: (built / soname).stat().st_size for soname in sonames}
            (built / "libraries.json").write_text(json.dumps(sizes), encoding="utf-8")
            if folder.exists():
                folder.rename(Path(work) / "former")
            built.rename(folder)
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: cannot be written ({error.strerror or error})") from error
    return Libraries(folder, torch, tuple(folder / name for name in sonames))


def _folder(torch: InstalledTorch) -> Path:
    """Where the libraries of a PyTorch lie: in the cache, under a name that changes with these sources.

    Raises:
        ConfigError: if there is no cache folder that belongs to this user alone.
    """
    root = disk_cache.private_folder()
    if root is None:
        raise ConfigError(
            "there is no cache folder that you own and no one else can write; name another in $VRAMPLAN_CACHE"
            f" (now {os.environ.get('VRAMPLAN_CACHE') or 'not set'})"
        )
    digest = hashlib.sha256(f"{torch.version} {torch.cuda} {torch.folder}".encode())
    for path in sorted([*SOURCES.iterdir(), *Path(__file__).parent.glob("*.py")]):
        digest.update(path.name.encode() + path.read_bytes())
    return Path(root) / "emulated-gpu" / f"torch-{torch.version}-{digest.hexdigest()[:16]}"


def _sonames(torch: InstalledTorch) -> dict[str, CudaLibrary]:
    """The libraries to build, in the order in which they are loaded.

    Raises:
        UnsupportedError: if PyTorch needs an NVIDIA library that is not known.
    """
    by_name = {library.name: library for library in LIBRARIES}
    needed = {"libcuda.so.1", "libnvidia-ml.so.1"}
    for soname in installed_torch.needed_libraries(torch):
        name = soname.removeprefix("lib").partition(".so")[0]
        if name in by_name:
            needed.add(soname)
        elif name.startswith(("cu", "nv")):
            raise UnsupportedError(f"torch {torch.version} needs {soname}, which the emulated GPU does not know")
    order = list(by_name)
    names = {soname: by_name[soname.removeprefix("lib").partition(".so")[0]] for soname in needed}
    return dict(sorted(names.items(), key=lambda item: order.index(item[1].name)))


def _compile(
    compiler: str,
    torch: InstalledTorch,
    library: CudaLibrary,
    soname: str,
    functions: dict[str, str],
    work: Path,
    out: Path,
) -> None:
    """One library: its own functions, and stubs of all others that are called.

    Raises:
        ConfigError: if the compiler fails.
    """
    stem = soname.partition(".so")[0].removeprefix("lib").replace("-", "_")
    cudnn, nccl = torch.required_version("nvidia-cudnn"), torch.required_version("nvidia-nccl")
    flags = ["-O1", "-fPIC", "-w", f"-I{SOURCES}", f"-DLIBRARY_{stem}", f"-DCUDA_MAJOR={torch.cuda_major}"]
    flags += [f"-DCUDNN_VERSION={_number(cudnn or (9, 10, 2))}", f"-DNCCL_VERSION={_number(nccl or (2, 27, 5))}"]
    parts = [library.source, *(["memory.c", "autograd.c"] if library.name == "cudart" else [])]
    objects = []
    for part in parts:
        objects.append(work / f"{stem}.{part}.o")
        run_tool(compiler, *flags, "-c", SOURCES / part, "-o", objects[-1])
    defined = {line.split()[-1] for path in objects for line in run_tool("nm", path).splitlines() if " T " in line}
    called = {name: node for name, node in functions.items() if _is_of(library, name, node)}
    lines = ["#include <stdlib.h>", "int emulated_not_supported(const char *function);"]
    if library.name != "cudart" and not library.uses_gpu:  # without the library that keeps the text of an error
        lines = [
            "#include <stdio.h>",
            "#include <stdlib.h>",
            "static int emulated_not_supported(const char *function) {",
        ]
        lines += [
            r'  fprintf(stderr, "vramplan: the emulated GPU does not support %s\n", function);',
            "  return 1;",
            "}",
        ]
    lines += [stub(library, name) for name in sorted(called) if name not in defined]
    stubs, versions = work / f"{stem}.stubs.c", work / f"{stem}.versions"
    stubs.write_text("\n".join(lines) + "\n", encoding="utf-8")
    nodes = sorted({node for node in called.values() if node})
    versions.write_text("".join(f"{node} {{ global: *; }};\n" for node in nodes), encoding="utf-8")
    extra: list[object] = [f"-Wl,--version-script={versions}"] if nodes else []
    if library.uses_gpu:
        extra += [next(out.glob("libcudart.so.*")), "-Wl,-rpath,$ORIGIN"]
    link = ["-O1", "-fPIC", "-w", "-shared", f"-Wl,-soname,{soname}"]
    run_tool(compiler, *link, *objects, stubs, *extra, "-o", out / soname, "-lpthread", "-ldl", "-lrt")


def _is_of(library: CudaLibrary, name: str, node: str) -> bool:
    """Whether a function is called from this library; a version node tells for sure."""
    if node.startswith("lib"):
        return node.removeprefix("lib").partition(".so")[0] == library.name
    return library_of(name) is library


def _number(version: tuple[int, ...]) -> int:
    """A version as its library reports it: cuDNN 9.20.0 is 92000, NCCL 2.29.7 is 22907."""
    major, minor, patch = (*version, 0, 0, 0)[:3]
    return major * 10000 + minor * 100 + patch
