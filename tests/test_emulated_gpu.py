"""The libraries that stand in for CUDA's: built for a small pretended PyTorch, and called by a C program."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers import cli
from vramplan.emulated_gpu import build, environment, installed_torch, run
from vramplan.emulated_gpu.cuda_libraries import LIBRARIES, library_of, stub
from vramplan.errors import ConfigError, MissingDependencyError, UnsupportedError
from vramplan.inputs.catalog import all_gpus, find_gpu
from vramplan.units import MiB

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in installed_torch.MACHINES or shutil.which("gcc") is None,
    reason="GPUs are emulated on Linux, and need a C compiler",
)

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
typedef struct { char internal[128]; } Id;
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemGetInfo(size_t *, size_t *), cudaGetDeviceCount(int *);
int cudaSetDevice(int), cudaGetDeviceProperties(char *, int), cudaStreamBeginCapture(void *, int);
int cudaMemcpy(void *, const void *, size_t, int), cudaHostAlloc(void **, size_t, unsigned), cudaFreeHost(void *);
int cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long, int *);
const char *cudaGetErrorString(int);
int ncclGetUniqueId(Id *), ncclCommInitRank(void **, int, Id, int), ncclCommSplit(void *, int, int, void **, void *);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int ncclAllGather(const void *, void *, size_t, int, void *, void *);
int ncclReduceScatter(const void *, void *, size_t, int, int, void *, void *);
int ncclSend(const void *, size_t, int, int, void *, void *), ncclRecv(void *, size_t, int, int, void *, void *);
static void memory(void) {
  size_t free_bytes, total;
  char properties[1008];
  void *a, *b, *host;
  int count, number = 7, copy = 0;
  cudaGetDeviceCount(&count);
  cudaGetDeviceProperties(properties, 0);
  cudaMemGetInfo(&free_bytes, &total);
  int *numbers = (int *)properties;
  printf("%d %s %d.%d %d\n", count, properties, numbers[90], numbers[91], numbers[96]);
  printf("%zu %zu\n", free_bytes, total);
  printf("%d ", cudaMalloc(&a, free_bytes - (6 << 20)));
  printf("%d ", cudaMalloc(&b, 5 << 20));
  printf("%d\n", cudaMalloc(&b, 1));
  cudaFree(a);
  cudaMemGetInfo(&free_bytes, &total);
  printf("%zu\n", free_bytes);
  cudaMalloc(&a, 1 << 20);
  cudaMemcpy(a, &number, sizeof number, 1);
  cudaMemcpy(&copy, a, sizeof copy, 2);
  printf("%d %d", copy, cudaHostAlloc(&host, (size_t)1 << 40, 0));
  printf(" %d\n", cudaFreeHost(host));
  printf("%s\n", cudaGetErrorString(cudaStreamBeginCapture(NULL, 0)));
  int (*create)(void *, size_t, int *, unsigned long long), status;
  int properties_of_memory[8] = {1, 0, 1, 0};
  void *handle;
  cudaGetDriverEntryPointByVersion("cuMemCreate", (void **)&create, 12000, 0, &status);
  printf("%d", create(&handle, 2 << 20, properties_of_memory, 0));
  printf(" %d\n", create(&handle, total, properties_of_memory, 0));
}
static void communicate(int rank, Id id) {
  void *all, *half;
  float mine[2] = {rank + 1, rank * 10}, sum[2], part;
  int key = rank, keys[2], message = 40 + rank, received;
  cudaSetDevice(rank);
  ncclCommInitRank(&all, 2, id, rank);
  ncclAllReduce(mine, sum, 2, 7, 0, all, NULL);
  ncclReduceScatter(mine, &part, 1, 7, 4, all, NULL);
  ncclAllGather(&key, keys, 1, 2, all, NULL);
  ncclSend(&message, 1, 2, 1 - rank, all, NULL);
  ncclRecv(&received, 1, 2, 1 - rank, all, NULL);
  ncclCommSplit(all, rank, 0, &half, NULL);
  float alone = 5;
  ncclAllReduce(&alone, &alone, 1, 7, 0, half, NULL);
  printf("%d: %g %g, %g, %d %d, %d, %g\n", rank, sum[0], sum[1], part, keys[0], keys[1], received, alone);
  fflush(stdout);
}
int main(int argc, char **argv) {
  if (!strcmp(argv[1], "memory")) memory();
  else {
    Id id;
    ncclGetUniqueId(&id);
    if (fork() == 0) { communicate(1, id); _exit(0); }
    communicate(0, id);
    wait(NULL);
  }
  return 3;
}
"""


def compile_c(path: Path, code: str, *flags: str) -> None:
    source = path.with_suffix(".c")
    source.write_text(code)
    subprocess.run(["gcc", "-w", str(source), "-o", str(path), *flags], check=True)


def pretend_torch(folder: Path, code: str = "", version: str = "2.13.0+cu130", cuda: str = "'13.0'") -> Path:
    """A package torch whose library calls what PROGRAM calls; the libraries that it was linked to do nothing."""
    (folder / "torch/lib").mkdir(parents=True)
    (folder / "torch/version.py").write_text(f"__version__ = '{version}'\ncuda: str | None = {cuda}\n")
    (folder / "torch/__init__.py").write_text("raise RuntimeError('imported')\n")
    for name, prefix in (("cudart.so.13", "cuda"), ("nccl.so.2", "nccl")):
        functions = set(re.findall(rf"\b({prefix}[A-Z]\w+)\(", PROGRAM))
        stubs = "".join(f"int {function}(void) {{ return -1; }}\n" for function in sorted(functions))
        compile_c(folder / f"lib{name}", stubs, "-shared", "-fPIC", f"-Wl,-soname,lib{name}")
    libraries = [str(folder / "libcudart.so.13"), str(folder / "libnccl.so.2")]
    flags = ["-shared", "-fPIC", "-Wl,--no-as-needed", *libraries]
    compile_c(folder / "torch/lib/libtorch_cuda.so", PROGRAM.replace("main", "called") + code, *flags)
    compile_c(folder / "torch/lib/libc10_cuda.so", 'const char *name = "cuMemExportToShareableHandle";', *flags)
    compile_c(folder / "program", PROGRAM, *libraries)
    return folder / "torch"


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretend_torch(tmp_path_factory.mktemp("packages"))


@pytest.fixture
def installed(torch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pretended PyTorch is the one that is found; the libraries are built once for all tests."""
    use(torch, monkeypatch)
    monkeypatch.setenv("VRAMPLAN_CACHE", str(torch.parent / "cache"))
    return torch


def use(torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SimpleNamespace(origin=str(torch / "__init__.py"))
    monkeypatch.setattr(installed_torch.importlib.util, "find_spec", lambda name: spec)


def output_of(torch: Path, what: str, gpu: str, num_gpus: int, tmp_path: Path) -> str:
    libraries = build.install()
    variables = environment.variables(libraries, find_gpu(gpu), 450 * MiB, num_gpus, tmp_path / "state", {})
    command = [str(torch.parent / "program"), what]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True).stdout


def test_memory_is_that_of_the_gpu(installed: Path, tmp_path: Path) -> None:
    gpu = find_gpu("rtx4090")
    lines = output_of(installed, "memory", "rtx4090", 2, tmp_path).splitlines()
    free = gpu.cuda_total_bytes - 450 * MiB
    assert lines[0] == "2 NVIDIA RTX 4090 8.9 128"
    assert lines[1] == f"{free} {gpu.cuda_total_bytes}"
    # pieces of 2 MiB: free bytes less 6 MiB, then 6 MiB of which 5 are asked for, then nothing is left
    rounded = (free - 6 * MiB + 2 * MiB - 1) // (2 * MiB) * 2 * MiB
    if rounded + 6 * MiB <= free:
        assert lines[2] == "0 0 2"
        assert lines[3] == str(free - 6 * MiB)
    assert lines[4] == "7 0 0", "small copies are made; page-locked memory takes no memory until it is written"
    assert lines[5] == "the emulated GPU does not support cudaStreamBeginCapture"
    assert lines[6] == "0 2", "memory of the driver (expandable segments) is counted, too"


def test_ranks_communicate(installed: Path, tmp_path: Path) -> None:
    lines = sorted(output_of(installed, "communicate", "a100-80gb", 2, tmp_path).splitlines())
    assert lines == ["0: 3 10, 1.5, 0 1, 41, 5", "1: 3 10, 5, 0 1, 40, 5"]


def test_values_are_computed_although_torch_was_looked_for_before(tmp_path: Path) -> None:
    """As transformers does: import transformers finds torch, and imports it later."""
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "vramplan_values.py").write_text("def start(): print('started')\n")
    program = "import importlib.util as u; print(u.find_spec('torch').name); import torch; u.find_spec('torch')"
    variables = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{environment.STARTUP}", "VRAMPLAN_EMULATED_NAME": "A"}
    ran = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["torch", "started"]


def test_values_are_known_of_small_tensors_only() -> None:
    """A view of a larger one has none: DeepSpeed took what its memory held before for gradients that overflow."""
    torch = pytest.importorskip("torch", reason="values are those of tensors")
    from vramplan.emulated_gpu.startup import vramplan_values as values

    assert values._is_small(torch.zeros(1024))
    assert not values._is_small(torch.zeros(1025))
    assert not values._is_small(torch.zeros(1025)[:4])
    assert not values._is_small(torch.zeros(4).expand(1000, 4))
    assert values._is_small(torch.zeros(1025, dtype=torch.int64)[:4])
    for function in (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default):
        assert values._Operation(function).is_unwritten
    assert not values._Operation(torch.ops.aten.zeros.default).is_unwritten


def test_a_command_reports_its_exit_code_and_peaks(installed: Path) -> None:
    build.install()
    finished = run.run([str(installed.parent / "program"), "memory"], find_gpu("t4"), 2, 100 * MiB)
    assert finished.exit_code == 3
    total = find_gpu("t4").cuda_total_bytes
    assert total - 8 * MiB <= finished.peak_bytes[0] <= total
    assert finished.peak_bytes[1] == 0
    with pytest.raises(ConfigError, match="no-such-command: cannot be run"):
        run.run(["no-such-command"], find_gpu("t4"), 1, 0)


def test_libraries_are_built_once_and_replaced_if_sources_change(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VRAMPLAN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match="not built yet: run `vramplan emulate --install`"):
        build.installed()
    libraries = build.install()
    assert build.installed() == libraries
    assert [path.name for path in libraries.paths] == [
        "libcudart.so.13", "libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2",
    ]  # fmt: skip
    assert all(path.exists() for path in libraries.paths)
    assert build.install() == libraries
    libraries.paths[1].write_bytes(b"")
    with pytest.raises(ConfigError, match="not built yet"):
        build.installed()
    assert build.install() == build.installed()
    assert [path.name for path in libraries.folder.parent.iterdir()] == [libraries.folder.name]


@pytest.mark.parametrize(
    ("version", "cuda", "error", "message"),
    [
        ("2.13.0+cpu", "None", ConfigError, "torch 2.13.0\\+cpu is built without CUDA"),
        ("2.5.1+cu124", "'12.4'", UnsupportedError, "2.6 and later"),
        ("2.7.0+cu118", "'11.8'", UnsupportedError, "CUDA 12 and 13"),
    ],
)
def test_other_builds_of_torch_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, cuda: str, error: type[Exception], message: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(f"__version__ = '{version}'\ncuda = {cuda}\n")
    use(tmp_path / "torch", monkeypatch)
    with pytest.raises(error, match=message):
        installed_torch.find()


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_torch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="not installed"):
        installed_torch.find()


def test_an_unknown_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMPLAN_CACHE", str(tmp_path / "cache"))
    torch = pretend_torch(tmp_path)
    compile_c(tmp_path / "libcufancy.so.1", "", "-shared", "-Wl,-soname,libcufancy.so.1")
    compile_c(torch / "lib/libtorch_more.so", "", "-shared", "-Wl,--no-as-needed", str(tmp_path / "libcufancy.so.1"))
    use(torch, monkeypatch)
    with pytest.raises(UnsupportedError, match=r"needs libcufancy\.so\.1, which the emulated GPU does not know"):
        build.install()


def test_an_unknown_function_is_named() -> None:
    assert installed_torch.unknown(["cudaMalloc", "cu_strange", "cublas2Create", "malloc", "cudnnCreate"]) == []
    assert installed_torch.unknown(["nvmlInit_v2", "cusomething"]) == []
    assert installed_torch.unknown(["cuptiGetVersion", "cuda_NewThing"]) == ["cuda_NewThing"]


def test_without_a_compiler(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match="no C compiler is found"):
        build.install()
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ConfigError, match="no-such-compiler"):
        build.install()


def test_functions_belong_to_one_library() -> None:
    for function, name in {
        "cudaMalloc": "cudart", "__cudaRegisterFunction": "cudart", "cuMemCreate": "cuda", "cuFileRead": "cufile",
        "cublasCreate_v2": "cublas", "cublasLtCreate": "cublasLt", "cusparseLtInit": "cusparseLt",
        "cusparseCreate": "cusparse", "ncclSend": "nccl", "nvmlInit_v2": "nvidia-ml", "cudnnCreate": "cudnn",
    }.items():  # fmt: skip
        library = library_of(function)
        assert library is not None
        assert library.name == name, function
    strict = {library.name: library for library in LIBRARIES}
    assert "not_supported" in stub(strict["cudart"], "cudaGraphLaunch")
    assert "not_supported" in stub(strict["cusolver"], "cusolverDnSgetrf_bufferSize")
    assert "calloc" in stub(strict["cublasLt"], "cublasLtCreate")
    assert "return 0" in stub(strict["cublas"], "cublasGemmEx")


def test_what_is_not_emulated_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="gpu=mi300x: only NVIDIA GPUs"):
        environment.check(find_gpu("mi300x"))
    with pytest.raises(UnsupportedError, match="gpu=gb200: its number of multiprocessors is not known"):
        environment.check(find_gpu("gb200"))
    with pytest.raises(ConfigError, match="at most 64"):
        environment.check(find_gpu("t4"), 65)
    nvidia = [gpu for gpu in all_gpus() if gpu.vendor == "NVIDIA"]
    assert len([gpu for gpu in nvidia if gpu.multiprocessors is None]) <= 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["emulate", "--gpu", "rtx4090"], "give the command to run after --"),
        (["emulate", "--", "ls"], "give --gpu"),
        (["emulate", "ls", "--gpu", "t4"], "give --gpu"),  # an option of ls
        (["emulate", "--install", "--gpu", "t4"], "--install takes neither"),
        (["emulate", "--gpu", "rtx9999", "--", "ls"], "rtx9999"),
        (["probe", "qwen2.5-0.5b", "--device", "emulated"], "--device emulated needs --as-card"),
        (
            ["probe", "qwen2.5-0.5b", "--device", "emulated", "--as-card", "mi300x"],
            "--as-card mi300x: only NVIDIA GPUs are emulated",
        ),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    result = cli(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
