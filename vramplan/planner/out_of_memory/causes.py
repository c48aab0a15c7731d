"""What a message says by itself of why memory ran out: one function for each reason, most certain first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vramplan.dataclass import dataclass
from vramplan.inputs.job import EXPANDABLE_SEGMENTS
from vramplan.training_log import Amount, OutOfMemory
from vramplan.units import GiB, MiB, format_bytes

OUTSIDE = 2 * GiB
"""Memory outside PyTorch's allocator from which another process is likely: context, NCCL and libraries take less."""
SPLIT = 0.05
"""Share of the GPU from which what PyTorch caches is called fragmentation: some is always left between tensors."""
OLDER_EXPANDABLE_SEGMENTS = EXPANDABLE_SEGMENTS.replace("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_FEWER_SAMPLES = "smaller {micro_batch_size}, more {gradient_accumulation_steps}"
OTHERS = 256 * MiB
"""Memory of other processes that is worth a word: a desktop takes more."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason, and what to do."""

    name: str
    text: str
    changes: tuple[str, ...] = ()
    """What to do, the most useful first. A setting in braces is a field of the job or a key of transformers' Trainer,
    with a value or without: ``{loss=liger}``; `spelling` puts the framework's own words there."""


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
        ("{dataloader_num_workers=0}", "{low_cpu_mem_usage=true}"),
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
        ("nvidia-smi", _FEWER_SAMPLES),
    )


def _vllm(failure: OutOfMemory) -> Cause | None:
    if failure.form == "vLLM's start":
        return Cause(
            "vLLM",
            "vLLM takes its share of the GPU as it starts, and less is free: the training beside it, or another"
            " process, holds the rest",
            ("a smaller gpu_memory_utilization (in TRL vllm_gpu_memory_utilization)", "nvidia-smi"),
        )
    if failure.form == "vLLM's cache":
        return Cause(
            "vLLM",
            "vLLM's share of the GPU goes to its weights and its activations: nothing is left for the cache of keys and"
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


PHASE_CAUSES: dict[str | None, Cause] = {
    **dict.fromkeys(
        ("loading", "moving the model"),
        Cause("loading", "the weights do not fit into what is free", ("{quantize=nf4}", "a larger GPU")),
    ),
    "optimizer states": Cause(
        "optimizer states",
        "the optimizer's states are made at the first optimizer step: what a full run needs shows only there",
        (
            "{optimizer=adamw_8bit}",
            "the optimizer on the host (DeepSpeed's offload_optimizer), ZeRO or FSDP over more GPUs",
            "LoRA instead of full fine-tuning",
        ),
    ),
    "gradient clipping": Cause("gradient clipping", "norms of the gradients take temporaries", ("{max_grad_norm=0}",)),
    "evaluation": Cause(
        "evaluation",
        "an evaluation has its own batch, and keeps logits, while weights and optimizer states stay",
        ("{eval_batch_size=1}", "{eval_accumulation_steps=1}", "{prediction_loss_only=true}"),
    ),
    "generation": Cause("generation", "generated tokens fill a cache of keys and values", ("generate fewer tokens",)),
    "saving": Cause(
        "saving",
        "saving a checkpoint gathers weights that are divided among GPUs",
        ("stage3_gather_16bit_weights_on_model_save: false", "fsdp_state_dict_type: SHARDED_STATE_DICT"),
    ),
    "loss": Cause(
        "logits",
        "the loss turns the logits, tokens x vocabulary, into fp32",
        ("{loss=liger}", _FEWER_SAMPLES),
    ),
}
"""What is special about a phase."""


def _phase(failure: OutOfMemory) -> Cause | None:
    if failure.phase in ("optimizer states", "optimizer step"):
        return _optimizer(failure)
    is_of_logits = any("logits" in frame.code and "float" in frame.code for frame in failure.frames[-FEW:])
    return PHASE_CAUSES.get("loss" if is_of_logits and failure.phase == "forward" else failure.phase)


def _optimizer(failure: OutOfMemory) -> Cause:
    """The lists of PyTorch's foreach optimizers are temporaries that the fused ones do not have."""
    states = PHASE_CAUSES["optimizer states"]
    if any("deepspeed/" in frame.file for frame in failure.frames):
        states = replace(states, changes=(states.changes[1], states.changes[0], states.changes[2]))
    if failure.phase == "optimizer states":
        return states
    if any("_multi_tensor_" in frame.function or "_foreach_" in frame.code for frame in failure.frames):
        return Cause(
            "optimizer step",
            "the optimizer works on lists of all parameters (foreach): its temporaries come on top of its states",
            ("{optimizer=adamw_torch_fused}",),
        )
    steps = next((bar.done for bar in failure.progress), 0)
    text = "the optimizer's step takes memory on top of its states"
    return Cause("optimizer step", text if steps else f"{text}, which the first step creates", states.changes)


FEW = 3
"""Of the innermost calls, those whose code is looked at."""


def _later_step(failure: OutOfMemory) -> Cause | None:
    """Steps went well before: something about this batch was larger."""
    done = next((bar.done for bar in failure.progress), 0)
    is_training = failure.memory == "gpu" and failure.phase in ("forward", "loss", "backward", None)
    if done < 2 or failure.figures.requested is None or not is_training:
        return None
    return Cause(
        "longest batch",
        f"{done:,} steps fitted before: this batch had longer samples, or other lengths had split PyTorch's cache",
        (_expandable(failure), "{group_by_length=true} puts the longest samples first", _FEWER_SAMPLES),
    )


RULES: tuple[Callable[[OutOfMemory], Cause | None], ...] = (
    _host, _outside_the_allocator, _vllm, _memory_fraction, _other_processes, _private_pools, _fragmentation, _phase,
    _later_step,
)  # fmt: skip
