"""What is special about the phase in which memory ran out."""

from __future__ import annotations

from vramplan.planner.out_of_memory.cause import FEWER_SAMPLES, Cause
from vramplan.training_log import OutOfMemory

INNERMOST = 3
"""Calls whose code is looked at."""
OFFLOAD = "the optimizer on the host (DeepSpeed's offload_optimizer), ZeRO or FSDP over more GPUs"
LORA = "LoRA instead of full fine-tuning"


def phase_cause(failure: OutOfMemory) -> Cause | None:
    """The cause that a failure's phase and calls show; None if they show none."""
    match failure.phase:
        case "loading" | "moving the model":
            return _loading(failure)
        case "optimizer states":
            return _optimizer_states(failure)
        case "optimizer step":
            return _optimizer_step(failure)
        case "gradient clipping":
            return Cause("gradient clipping", "norms of the gradients take temporaries", ("{max_grad_norm=0}",))
        case "evaluation":
            return Cause(
                "evaluation",
                "an evaluation has its own batch, and keeps logits, while weights and optimizer states stay",
                ("{eval_batch_size=1}", "{eval_accumulation_steps=1}", "{prediction_loss_only=true}"),
            )
        case "generation":
            return Cause("generation", "generated tokens fill a cache of keys and values", ("generate fewer tokens",))
        case "saving":
            return _saving(failure)
        case "forward" | "loss":
            return _logits(failure)
    return None


def _calls(failure: OutOfMemory, *functions: str) -> bool:
    """Whether one of these functions is in the traceback."""
    return any(frame.function in functions for frame in failure.frames)


def _goes_through(failure: OutOfMemory, *folders: str) -> bool:
    """Whether a call is in a file of one of these folders."""
    return any(folder in f"/{frame.file}" for frame in failure.frames for folder in folders)


def _loading(failure: OutOfMemory) -> Cause:
    if _calls(failure, "_load_optimizer_and_scheduler", "load_fsdp_optimizer", "load_checkpoint"):
        return Cause(
            "resuming",
            "the checkpoint's optimizer states come on top of the model",
            ("as many GPUs, of as much memory, as the checkpoint was made on",),
        )
    return Cause("loading", "the weights do not fit into what is free", ("{quantize=nf4}", "a larger GPU"))


def _optimizer_states(failure: OutOfMemory) -> Cause:
    if _goes_through(failure, "/bitsandbytes/"):  # of eight bits already
        return Cause(
            "optimizer states", _STATES, ("{optimizer=paged_adamw_8bit}", "LoRA with a lower rank, or on fewer modules")
        )
    if _calls(failure, "initialize_optimizer_states"):
        text = "DeepSpeed makes the optimizer's states and fp32 weights as it starts, before the first step"
        return Cause("optimizer states", text, (OFFLOAD, "{optimizer=adamw_8bit}", LORA))
    if _goes_through(failure, "/deepspeed/"):
        return Cause("optimizer states", _STATES, (OFFLOAD, "{optimizer=adamw_8bit}", LORA))
    return Cause("optimizer states", _STATES, ("{optimizer=adamw_8bit}", OFFLOAD, LORA))


_STATES = "the optimizer's states are made at the first optimizer step: what a full run needs shows only there"


def _optimizer_step(failure: OutOfMemory) -> Cause:
    """The lists of PyTorch's foreach optimizers are temporaries that the fused ones do not have."""
    if any("_multi_tensor_" in frame.function or "_foreach_" in frame.code for frame in failure.frames):
        return Cause(
            "optimizer step",
            "the optimizer works on lists of all parameters (foreach): its temporaries come on top of its states",
            ("{optimizer=adamw_torch_fused}",),
        )
    steps = next((bar.done for bar in failure.progress), 0)
    text = "the optimizer's step takes memory on top of its states"
    changes = _optimizer_states(failure).changes
    return Cause("optimizer step", text if steps else f"{text}, which the first step creates", changes)


def _saving(failure: OutOfMemory) -> Cause:
    deepspeed, fsdp = _goes_through(failure, "/deepspeed/"), _goes_through(failure, "/fsdp")
    if not deepspeed and not fsdp:
        return Cause("saving", "saving a checkpoint needs memory beside what the training holds")
    change = (
        "stage3_gather_16bit_weights_on_model_save: false" if deepspeed else "fsdp_state_dict_type: SHARDED_STATE_DICT"
    )
    return Cause("saving", "saving a checkpoint gathers weights that are divided among GPUs", (change,))


def _logits(failure: OutOfMemory) -> Cause | None:
    """The logits, whose size the vocabulary decides."""
    if _goes_through(failure, "/liger_kernel/", "/unsloth_zoo/"):
        if failure.phase != "loss":
            return None
        return Cause(
            "logits",
            "the loss is fused already: it takes the logits in chunks, and needs room for one chunk and the gradients",
            (FEWER_SAMPLES,),
        )
    codes = [frame.code for frame in failure.frames[-INNERMOST:]]
    if failure.phase == "loss" or any("logits" in code and "float" in code for code in codes):
        text = "the loss turns the logits, tokens x vocabulary, into fp32"
    elif any("lm_head(" in code for code in codes) or _calls(failure, "selective_log_softmax"):
        text = "the logits are of tokens x vocabulary"
    else:
        return None
    return Cause("logits", text, ("{loss=liger}", FEWER_SAMPLES))
