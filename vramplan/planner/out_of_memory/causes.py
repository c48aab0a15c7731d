"""What a message says by itself of why memory ran out: one function for each reason, most certain first."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.dataclass import dataclass
from vramplan.inputs.job import EXPANDABLE_SEGMENTS
from vramplan.training_log import Amount, OutOfMemory
from vramplan.units import GiB, MiB, format_bytes

OUTSIDE = 2 * GiB
"""Memory outside PyTorch's allocator from which another process is likely: context, NCCL and libraries take less."""
SPLIT = 0.05
"""Share of the GPU from which what PyTorch caches is called fragmentation: some is always left between tensors."""
OLDER_EXPANDABLE_SEGMENTS = EXPANDABLE_SEGMENTS.replace("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
OTHERS = 256 * MiB
"""Memory of other processes that is worth a word: a desktop takes more."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason, and what to do."""

    name: str
    text: str
    changes: tuple[str, ...] = ()
    """Lines or commands, the most useful first; settings by the names of transformers' TrainingArguments."""


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
        ("dataloader_num_workers: 0", "low_cpu_mem_usage: true"),
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
        Cause("loading", "the weights do not fit into what is free", ("load_in_4bit: true", "a larger GPU")),
    ),
    "optimizer states": Cause(
        "optimizer states",
        "the optimizer's states are made at the first optimizer step: what a full run needs shows only there",
        ("optim: adamw_8bit", "ZeRO or FSDP over several GPUs", "LoRA instead of full fine-tuning"),
    ),
    "optimizer step": Cause(
        "optimizer step", "the optimizer's temporaries come on top of its states", ("optim: adamw_torch_fused",)
    ),
    "gradient clipping": Cause("gradient clipping", "norms of the gradients take temporaries", ("max_grad_norm: 0",)),
    "evaluation": Cause(
        "evaluation",
        "an evaluation has its own batch, and keeps logits, while weights and optimizer states stay",
        ("per_device_eval_batch_size: 1", "eval_accumulation_steps: 1", "prediction_loss_only: true"),
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
        ("use_liger_kernel: true", "per_device_train_batch_size: fewer, gradient_accumulation_steps: more"),
    ),
}
"""What is special about a phase."""


def _phase(failure: OutOfMemory) -> Cause | None:
    is_of_logits = any("logits" in frame.code and "float" in frame.code for frame in failure.frames[-FEW:])
    return PHASE_CAUSES.get("loss" if is_of_logits and failure.phase == "forward" else failure.phase)


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
        (_expandable(failure), "group_by_length: true puts the longest samples first"),
    )


RULES: tuple[Callable[[OutOfMemory], Cause | None], ...] = (
    _host, _memory_fraction, _other_processes, _private_pools, _fragmentation, _phase, _later_step,
)  # fmt: skip
