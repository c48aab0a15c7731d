"""Messages of each version's wording, with invented numbers, and what bad ones do."""

from __future__ import annotations

import pytest

from vramplan.training_log import Amount, Figures, ProcessMemory
from vramplan.training_log.amount import parse_amount
from vramplan.training_log.message import parse_message, parse_warning, sharpen
from vramplan.training_log.message_forms import FORMS, MessageForm, compile_template
from vramplan.units import GiB, KiB, MiB

HALF_MIB, HALF_GIB = 5243, 5368710


def mib(number: float) -> Amount:
    return Amount(round(number * MiB), HALF_MIB)


def gib(number: float) -> Amount:
    return Amount(round(number * GiB), HALF_GIB)


PROCESSES = (
    "Process 4711 has 1.50 GiB memory in use. Including non-PyTorch memory, this process has 22.10 GiB memory in use. "
)
MESSAGES = {
    "1.13": (
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 3; 23.69 GiB total capacity; 21.25 GiB "
        "already allocated; "
        "10.81 MiB free; 22.50 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
        "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and "
        "PYTORCH_CUDA_ALLOC_CONF",
        Figures(mib(20), gib(23.69), mib(10.81), None, gib(21.25), gib(22.5) - gib(21.25), None, gib(22.5)),
    ),
    "2.0 with a memory fraction": (
        "CUDA out of memory. Tried to allocate 1.50 GiB (GPU 3; 23.69 GiB total capacity; 9.00 GiB already allocated; "
        "14.00 GiB free; 11.84 GiB allowed; 9.50 GiB reserved in total by PyTorch)",
        Figures(gib(1.5), gib(23.69), gib(14), gib(11.84), gib(9), gib(9.5) - gib(9), None, gib(9.5)),
    ),
    "2.1": (
        "CUDA out of memory. Tried to allocate 224.00 MiB. GPU 3 has a total capacty of 23.69 GiB of "
        "which 11.06 MiB is "
        f"free. {PROCESSES}Of the allocated memory 21.00 GiB is allocated by PyTorch, and 509.85 MiB is reserved by "
        "PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid",
        Figures(
            mib(224), gib(23.69), mib(11.06), None, gib(21), mib(509.85), None, gib(21) + mib(509.85),
            processes=(ProcessMemory(4711, gib(1.5)), ProcessMemory(None, gib(22.1))),
        ),
    ),
    "2.4 with CUDA graphs and a memory fraction": (
        "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 3 has a total capacity of 23.69 GiB of "
        "which 896.00 KiB is "
        f"free. {PROCESSES}20.00 GiB allowed; Of the allocated memory 19.00 GiB is allocated by PyTorch, "
        f"with 512.00 MiB "
        "allocated in private pools (e.g., CUDA Graphs), and 149.10 MiB is reserved by PyTorch but unallocated. If",
        Figures(
            mib(2), gib(23.69), Amount(896 * KiB, 6), gib(20), gib(19) - mib(512), mib(149.1), mib(512),
            gib(19) + mib(149.1), processes=(ProcessMemory(4711, gib(1.5)), ProcessMemory(None, gib(22.1))),
        ),
    ),
    "ROCm lists no processes": (
        "HIP out of memory. Tried to allocate 978.00 MiB. GPU 3 has a total capacity of 15.98 GiB of "
        "which 630.00 MiB is "
        "free. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
        "unallocated.",
        Figures(mib(978), gib(15.98), mib(630), None, Amount(0), Amount(0), None, Amount(0)),
    ),
    "XPU without the free memory": (
        "XPU out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 15.56 GiB. Of the "
        "allocated memory "
        "14.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated. Please use",
        Figures(gib(2), gib(15.56), None, None, gib(14), mib(100), None, gib(14) + mib(100)),
    ),
    "Windows does not tell a process's memory": (
        "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 3 has a total capacity of 8.00 GiB of "
        "which 0 bytes is free. "
        "Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of the allocated memory "
        "11.32 GiB is allocated by PyTorch, and 216.03 MiB is reserved by PyTorch but unallocated.",
        Figures(
            gib(4), gib(8), Amount(0), None, gib(11.32), mib(216.03), None, gib(11.32) + mib(216.03),
            processes=(ProcessMemory(None, None),),
        ),
    ),
    "cut": (
        "CUDA out of memory. Tried to allocate 37.09 GiB. GPU 3 has a total capacity of 79.18 GiB of "
        "which 34.48 GiB is "
        "free. Including non-PyTorch memory, this process has 44.",
        Figures(gib(37.09), gib(79.18), gib(34.48)),
    ),
}  # fmt: skip
OTHERS = {
    "cudaMallocAsync": (
        "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 4.86 GiB\n"
        "Requested               : 10.12 GiB\nDevice limit            : 24.00 GiB\nFree (according to CUDA): 0 bytes\n"
        "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n",
        "cudaMallocAsync",
        Figures(gib(10.12), gib(24), Amount(0), None, gib(4.86)),
    ),
    "MPS": (
        "RuntimeError: MPS backend out of memory (MPS allocated: 7.80 GiB, other allocations: 6.94 GiB, max allowed: "
        "18.13 GiB). Tried to allocate 3.46 GiB on private pool. Use",
        "MPS",
        Figures(gib(3.46), allowed=gib(18.13), reserved=gib(7.8), other_allocations=gib(6.94)),
    ),
    "old MPS": (
        "MPS backend out of memory (MPS allocated: 17.88 GB, other allocations: 118.75 MB). Tried to "
        "allocate 256.00 MB "
        "on shared pool.",
        "MPS",
        Figures(mib(256), reserved=gib(17.88), other_allocations=mib(118.75)),
    ),
    "rejected": (
        "torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        "per_process_memory_fraction limit. Requested size: 702.00 MiB",
        "allocator, rejected by the memory fraction",
        Figures(mib(702)),
    ),
    "absurd": ("CUDA out of memory. Tried to allocate more than 1EB memory.", "allocator, absurd size", Figures()),
    "bare": ("RuntimeError: CUDA out of memory.", "allocator, cut", Figures()),
    "driver": ("RuntimeError: CUDA error: out of memory", "CUDA", Figures()),
    "page": ("RuntimeError: CUDA driver error: out of memory", "CUDA driver", Figures()),
    "cuBLAS": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuBLAS", Figures()
    ),
    "cuDNN": ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cuDNN", Figures()),
    "NCCL": ("alloc.h:176 NCCL WARN Failed to CUDA calloc async 608 bytes", "NCCL", Figures()),
    "NCCL's call": ("Last error: Cuda failure 2 'out of memory'", "NCCL's call", Figures()),
    "bitsandbytes": ("Error out of memory at line 380 in file ops.cu", "bitsandbytes", Figures()),
    "vLLM": ("ValueError: No available memory for the cache blocks. Try", "vLLM's cache", Figures()),
    "host": (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
        "allocate memory: you tried "
        "to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)",
        "host allocation",
        Figures(Amount(64 * GiB)),
    ),
    "host on Windows": (
        "DefaultCPUAllocator: not enough memory: you tried to allocate 4096 bytes.",
        "host allocation",
        Figures(Amount(4096)),
    ),
    "torchrun": ("  traceback : Signal 9 (SIGKILL) received by PID 12", "host, killed", Figures()),
    "DeepSpeed": ("main.py exits with return code = -9", "host, killed", Figures()),
    "Slurm": ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.", "host, killed", Figures()),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_versions(name: str) -> None:
    text, figures = MESSAGES[name]
    message = parse_message(f"RuntimeError: {text}")
    assert message is not None
    form, gpu, parsed = message
    assert (gpu, form.memory, parsed) == (3, "gpu", figures)


@pytest.mark.parametrize("name", MESSAGES)
def test_wrapped_lines_say_the_same(name: str) -> None:
    text, _ = MESSAGES[name]
    for width in (30, 79):
        words, lines = text.split(), [""]
        for word in words:
            lines[-1:] = [f"{lines[-1]} {word}".strip()] if len(lines[-1]) < width else [lines[-1], word]
        assert parse_message("\n".join(lines)) == parse_message(text)


@pytest.mark.parametrize("name", MESSAGES)
def test_every_beginning_of_a_message_says_no_more_than_the_whole(name: str) -> None:
    text, figures = MESSAGES[name]
    for end in range(len("CUDA out of memory. Tried to allocate "), len(text), 3):
        message = parse_message(text[:end])
        assert message is not None
        for field in ("requested", "capacity", "free", "allowed"):
            value = getattr(message[2], field)
            assert value in (None, getattr(figures, field))


@pytest.mark.parametrize("name", OTHERS)
def test_other_messages(name: str) -> None:
    text, form, figures = OTHERS[name]
    message = parse_message(text)
    assert message is not None
    assert (message[0].name, message[2]) == (form, figures)


@pytest.mark.parametrize(
    "text",
    [
        "", "memory", "CUDA error: an illegal memory access was encountered", "CUBLAS_STATUS_NOT_INITIALIZED",
        "Error an illegal memory access was encountered at line 88", "exits with return code = 1",
    ],
)  # fmt: skip
def test_no_message(text: str) -> None:
    assert parse_message(text) is None


def test_what_follows_from_the_figures() -> None:
    message = parse_message(MESSAGES["2.4 with CUDA graphs and a memory fraction"][0])
    assert message is not None
    figures = message[2]
    assert figures.reserved is not None
    assert figures.own_process == gib(22.1)
    assert figures.outside_allocator == gib(22.1) - figures.reserved
    assert figures.outside_pytorch == gib(23.69) - Amount(896 * KiB, 6) - figures.reserved
    assert (Figures().own_process, Figures().outside_allocator, Figures().outside_pytorch) == (None, None, None)


@pytest.mark.parametrize("num_bytes", [0, 1, 1024, 1025, MiB, MiB + 1, 20 * MiB, GiB, GiB + 1, 23 * GiB + 12345])
def test_an_amount_allows_what_pytorch_would_print_so(num_bytes: int) -> None:
    units = (("GiB", GiB), ("MiB", MiB), ("KiB", KiB))
    unit, size = next((pair for pair in units if num_bytes > pair[1]), ("bytes", 1))
    text = f"{num_bytes} bytes" if unit == "bytes" else f"{num_bytes / size:.2f} {unit}"
    amount = parse_amount(text)
    assert amount is not None
    assert amount.allows(num_bytes)
    assert amount.high - amount.low <= size // 100 + 2


def test_not_a_size() -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_amount("many")


def test_exact_sizes_of_a_warning() -> None:
    warning = parse_warning(
        "[W1 CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on device 3 while trying to allocate "
        "20971520 bytes (free: 11335106, total: 25436000000)."
    )
    assert warning is not None
    assert warning[0] == 3
    figures = sharpen(Figures(mib(20), gib(23.69), mib(10.81)), warning[1])
    assert figures == Figures(Amount(20971520), Amount(25436000000), Amount(11335106))
    other_gpu = Figures(mib(20), gib(79.15), mib(10.81))
    assert sharpen(other_gpu, warning[1]) == other_gpu
    assert parse_warning("memory allocation failed") is None


def test_patterns_do_not_search_back() -> None:
    amount = "1.00 GiB"
    long = f"Tried to allocate {amount}. GPU 0 has a total capacity of {amount} of which {amount} is free. "
    long += f"Process 1 has {amount} memory in use. " * 400
    message = parse_message(f"CUDA out of memory. {long}")
    assert message is not None
    assert len(message[2].processes) == 256
    assert parse_message(f"CUDA out of memory. Tried to allocate {'9' * 100_000} MiB") is not None


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.name} {form.marker}")
def test_forms_compile_and_name_figures(form: MessageForm) -> None:
    pattern = compile_template(form.template)
    assert {*pattern.groupindex} <= {*Figures.__slots__, "gpu"}
