"""What a message says by itself of why memory ran out: one function for each reason, most certain first."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.inputs.job_values import EXPANDABLE_SEGMENTS
from vramplan.planner.out_of_memory.cause import FEWER_SAMPLES, Cause
from vramplan.planner.out_of_memory.phase_causes import phase_cause
from vramplan.training_log import Amount, OutOfMemory
from vramplan.units import GiB, MiB, format_bytes

OUTSIDE = 2 * GiB
"""Memory outside PyTorch's allocator from which another process is likely: context, NCCL and libraries take less."""
SPLIT = 0.05
"""Share of the GPU from which what PyTorch caches is called fragmentation: some is always left between tensors."""
OLDER_EXPANDABLE_SEGMENTS = EXPANDABLE_SEGMENTS.replace("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
OTHERS = 256 * MiB
"""Memory of other processes that is worth a word: a desktop takes more."""


def causes(failure: OutOfMemory) -> tuple[Cause, ...]:
    """The reasons that a message itself shows; empty if it shows none."""
    return tuple(cause for rule in RULES if (cause := rule(failure)) is not None)


def _expandable(failure: OutOfMemory) -> str:
    """The variable for expandable segments by the name that this PyTorch reads: before 2.9 the longer one alone."""
    return EXPANDABLE_SEGMENTS if "PYTORCH_ALLOC_CONF" in failure.text else OLDER_EXPANDABLE_SEGMENTS


def _size(amount: Amount) -> str:
    return format_bytes(max(0, amount.num_bytes))


def _host(failure: OutOfMemory) -> Cause | None:
    if failure.memory != "host":
        return None
    is_killed = failure.form == "host, killed"
    text = (
        "the process was killed (signal 9), most often because the host's memory ran out"
        if is_killed
        else ("the host's memory ran out, not a GPU's")
    )
    return Cause(
        "host memory",
        f"{text}: data loaders, an optimizer on the host, or loading the checkpoint",
        ("{dataloader_num_workers=0}", "more memory for the job: Slurm's --mem, the container's limit"),
    )


def _other_processes(failure: OutOfMemory) -> Cause | None:
    figures = failure.figures
    if figures.own_process is not None:
        others = [process.used for process in figures.processes if process.pid is not None and process.used is not None]
        held = sum(amount.num_bytes for amount in others)
        if held < OTHERS:
            return None
        text = f"other processes hold {format_bytes(held)} of this GPU"
    else:
        outside = figures.outside_pytorch
        if outside is None or outside.low < OUTSIDE:
            return None
        held = outside.num_bytes
        text = f"{_size(outside)} of this GPU are in use outside PyTorch's allocator: other processes, most likely"
    if figures.requested is not None and figures.free is not None:
        enough = figures.free.num_bytes + held >= figures.requested.num_bytes
        text += "; without them the request fits" if enough else "; without them it would still not fit"
    return Cause("other processes", text, ("nvidia-smi",))


OWN_MEMORY = ("cuBLAS", "cuDNN", "cuSOLVER", "cuFFT", "NCCL", "NCCL's call", "bitsandbytes", "Triton")
"""Forms of messages of libraries that ask CUDA for memory themselves."""


def _outside_the_allocator(failure: OutOfMemory) -> Cause | None:
    """A request that PyTorch's allocator did not make: the message has no sizes."""
    if failure.form in OWN_MEMORY:
        library = failure.form.removesuffix("'s call")
        text = f"CUDA gave {library} no memory of its own, outside PyTorch's allocator"
    elif failure.form in ("CUDA", "CUDA driver", "HIP"):
        text = "the driver refused memory that PyTorch's allocator did not ask for"
    else:
        return None
    return Cause(
        "outside PyTorch",
        f"{text}: another process fills the GPU, or this one's tensors and cache leave no room; the message tells no"
        " sizes",
        ("nvidia-smi", FEWER_SAMPLES),
    )


def _vllm(failure: OutOfMemory) -> Cause | None:
    if failure.form == "vLLM's start":
        return Cause(
            "vLLM",
            "less of the GPU is free than the share that vLLM takes as it starts: the training beside it, or another"
            " process, holds the rest",
            ("a smaller gpu_memory_utilization (in TRL vllm_gpu_memory_utilization)", "nvidia-smi"),
        )
    if failure.form == "vLLM's sleep mode":
        return Cause(
            "vLLM",
            "the training holds too much of the GPU as vLLM wakes up and takes its weights or its cache back",
            ("a smaller gpu_memory_utilization (in TRL vllm_gpu_memory_utilization)", FEWER_SAMPLES),
        )
    if failure.form == "vLLM's cache":
        return Cause(
            "vLLM",
            "weights and activations take all of vLLM's share of the GPU: nothing is left for its cache of keys and"
            " values",
            ("a larger gpu_memory_utilization (in TRL vllm_gpu_memory_utilization)", "a smaller max_model_len"),
        )
    return None


def _memory_fraction(failure: OutOfMemory) -> Cause | None:
    figures = failure.figures
    if failure.form == "MPS" or figures.allowed is None or figures.reserved is None or figures.requested is None:
        return None
    if figures.reserved.num_bytes + figures.requested.num_bytes <= figures.allowed.high:
        return None
    return Cause(
        "memory fraction",
        f"the process may use {_size(figures.allowed)} only (torch.cuda.set_per_process_memory_fraction)",
        ("torch.cuda.set_per_process_memory_fraction(1.0)",),
    )


def _beyond_the_gpu(failure: OutOfMemory) -> Cause | None:
    figures = failure.figures
    if figures.allocated is None or figures.capacity is None or figures.allocated.low <= figures.capacity.high:
        return None
    return Cause(
        "host memory as GPU memory",
        f"tensors hold {_size(figures.allocated)}, more than the GPU has: NVIDIA's driver for Windows puts the rest"
        " into the host's memory, and that ran out too",
        ("Prefer No Sysmem Fallback, in NVIDIA's control panel, fails earlier instead of training slowly",),
    )


def _private_pools(failure: OutOfMemory) -> Cause | None:
    pools = failure.figures.free_in_private_pools
    requested = failure.figures.requested
    if pools is None or requested is None or pools.num_bytes < requested.num_bytes:
        return None
    return Cause("CUDA graphs", f"CUDA graphs keep {_size(pools)} for themselves, which other tensors cannot use")


def _fragmentation(failure: OutOfMemory) -> Cause | None:
    figures = failure.figures
    if figures.unallocated is None or figures.requested is None or figures.free is None:
        return None
    if figures.unallocated.num_bytes + figures.free.num_bytes < figures.requested.num_bytes:
        return None
    if figures.capacity is None or figures.unallocated.num_bytes < SPLIT * figures.capacity.num_bytes:
        return None
    return Cause(
        "fragmentation",
        f"PyTorch holds {_size(figures.unallocated)} in pieces too small for the {_size(figures.requested)} that were"
        " asked for: sizes that vary, such as samples of different lengths, split its cache",
        (_expandable(failure),),
    )


def _later_step(failure: OutOfMemory) -> Cause | None:
    """Steps went well before: something about this batch was larger."""
    done = next((bar.done for bar in failure.progress), 0)
    is_training = failure.memory == "gpu" and failure.phase in ("forward", "loss", "backward", None)
    if done < 2 or failure.figures.requested is None or not is_training:
        return None
    return Cause(
        "longest batch",
        f"{done:,} steps fitted before: this batch had longer samples, or other lengths had split PyTorch's cache",
        (_expandable(failure), "{group_by_length=true} puts the longest samples first", FEWER_SAMPLES),
    )


RULES: tuple[Callable[[OutOfMemory], Cause | None], ...] = (
    _host, _outside_the_allocator, _vllm, _memory_fraction, _beyond_the_gpu, _other_processes, _private_pools,
    _fragmentation, phase_cause, _later_step,
)  # fmt: skip
