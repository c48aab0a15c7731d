"""A plan in a framework's own words: what to paste, and what it could not say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vramplan.errors import UnsupportedError
from vramplan.job import Job

Pairs = dict[str, Any]
"""Keys and values, in the order to be written."""
FULL_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
FLASH = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}


class Written(NamedTuple):
    """A configuration to paste."""

    pairs: Pairs
    variables: dict[str, str]
    """Of the environment."""
    command: str
    """What starts it; a file's name stands where the configuration goes."""
    is_file: bool
    """Whether the pairs go into a YAML file, not behind the command."""
    launcher: str = ""
    """What the command's launcher calls the number of processes, where it is told."""

    def __str__(self) -> str:
        end = " " if self.is_file else " \\\n"
        variables = "".join(f"{name}={value}{end}" for name, value in self.variables.items())
        if not self.is_file:
            flags = "".join(f" \\\n    --{key} {_word(value)}" for key, value in self.pairs.items())
            return f"{variables}{self.command}{flags}\n"
        lines = "".join(f"{key}: {_yaml(value)}\n" for key, value in self.pairs.items())
        return f"# {variables}{self.command}\n{lines}"


def _word(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _yaml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(str, value))}]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _common(job: Job) -> Pairs:
    """What all around the Trainer call alike."""
    return {
        "per_device_train_batch_size": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "optim": job.optimizer,
    }


def _adapters(job: Job, rank: str, targets: str, everything: Any) -> Pairs:
    if job.method == "full":
        return {}
    named = everything if job.lora_targets is None else list(job.lora_targets)
    return {rank: job.lora_rank, "lora_dropout": job.lora_dropout, targets: named}


def swift(model: str, job: Job) -> Written:
    """``swift sft`` of ms-swift 4."""
    pairs = {
        "model": model,
        "tuner_type": "full" if job.method == "full" else "lora",
        "torch_dtype": FULL_NAMES["fp16" if job.autocast == "fp16" and job.method == "full" else job.dtype],
        **_common(job),
        "max_length": job.sequence_length,
        **_adapters(job, "lora_rank", "target_modules", "all-linear"),
        "gradient_checkpointing": job.checkpointing == "full",
        "attn_impl": "flash_attn" if job.attention == "flash" else job.attention,
    }
    if job.quantize == "nf4":
        pairs |= {"quant_method": "bnb", "quant_bits": 4, "bnb_4bit_use_double_quant": job.double_quant}
    if job.loss == "liger":
        pairs["use_liger_kernel"] = True
    if job.batches == "packed":
        pairs["packing"] = True
    variables = {"NPROC_PER_NODE": str(job.num_gpus)}
    return Written(pairs, variables | _allocator(job), "swift sft", is_file=False)


def llamafactory(model: str, job: Job) -> Written:
    """LLaMA-Factory's YAML."""
    pairs = {
        "model_name_or_path": model,
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full" if job.method == "full" else "lora",
        **_common(job),
        "cutoff_len": job.sequence_length,
        **_adapters(job, "lora_rank", "lora_target", "all"),
        "flash_attn": "fa2" if job.attention == "flash" else "disabled" if job.attention == "eager" else "sdpa",
    }
    if isinstance(pairs.get("lora_target"), list):
        pairs["lora_target"] = ",".join(pairs["lora_target"])
    pure = job.method == "full" and job.dtype == "bf16"
    pairs["pure_bf16" if pure else "fp16" if job.autocast == "fp16" else "bf16"] = True
    if job.checkpointing == "none":
        pairs["disable_gradient_checkpointing"] = True
    if job.loss == "liger":
        pairs["enable_liger_kernel"] = True
    if job.quantize == "nf4":
        pairs |= {"quantization_bit": 4, "double_quantization": job.double_quant}
    variables = {"NPROC_PER_NODE": str(job.num_gpus)} if job.num_gpus > 1 else {"CUDA_VISIBLE_DEVICES": "0"}
    return Written(pairs, variables | _allocator(job), "llamafactory-cli train train.yaml", is_file=True)


def axolotl(model: str, job: Job) -> Written:
    """Axolotl's YAML."""
    pairs: Pairs = {"base_model": model}
    if job.method != "full":
        pairs["adapter"] = "qlora" if job.quantize == "nf4" else "lora"
        pairs |= {"load_in_4bit": True} if job.quantize == "nf4" else {}
        pairs |= {"lora_r": job.lora_rank, "lora_alpha": 2 * job.lora_rank, "lora_dropout": job.lora_dropout}
        everything = {"lora_target_linear": True}
        pairs |= everything if job.lora_targets is None else {"lora_target_modules": list(job.lora_targets)}
        pairs |= {} if job.lora_dtype == "fp32" else {"peft_autocast_adapter_dtype": False}
    pairs |= {
        "micro_batch_size": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "sequence_len": job.sequence_length,
        "optimizer": job.optimizer,
        "gradient_checkpointing": job.checkpointing == "full",
        "attn_implementation": FLASH[job.attention],
        "bf16" if job.autocast != "fp16" else "fp16": job.dtype != "fp32" or job.autocast != "none",
    }
    if job.loss == "liger":
        pairs |= {"plugins": ["axolotl.integrations.liger.LigerPlugin"], "liger_fused_linear_cross_entropy": True}
    if job.batches == "packed":
        pairs["sample_packing"] = True
    command = f"accelerate launch --num_processes {job.num_gpus} -m axolotl.cli.train train.yaml"
    return Written(pairs, _allocator(job), command, is_file=True, launcher="num_processes")


def _trainer(model: str, job: Job) -> Pairs:
    """What TRL and plain scripts call alike."""
    return {
        "model_name_or_path": model,
        "dtype": FULL_NAMES[job.dtype],
        **_common(job),
        "max_length": job.sequence_length,
        "gradient_checkpointing": job.checkpointing == "full",
        "attn_implementation": FLASH[job.attention],
        "bf16": job.autocast == "bf16",
        "fp16": job.autocast == "fp16",
    }


def trl(model: str, job: Job) -> Written:
    """TRL's YAML."""
    pairs = _trainer(model, job) | {"num_processes": job.num_gpus}
    if job.method != "full":
        pairs |= {"use_peft": True, **_adapters(job, "lora_r", "lora_target_modules", "all-linear")}
    if job.quantize == "nf4":
        pairs |= {"load_in_4bit": True, "use_bnb_nested_quant": job.double_quant}
    if job.batches == "packed":
        pairs["packing"] = True
    return Written(pairs, _allocator(job), "trl sft --config train.yaml", is_file=True)


def transformers(model: str, job: Job) -> Written:
    """Flags for a script around transformers' Trainer.

    Raises:
        UnsupportedError: for what only the script's own code can say.
    """
    if job.quantize != "none" or job.lora_targets is not None:
        raise UnsupportedError("--for transformers: quantized bases and LoRA targets are said in the script's own code")
    pairs = _trainer(model, job)
    if job.method != "full":
        pairs |= {"use_peft": True, "lora_r": job.lora_rank, "lora_dropout": job.lora_dropout}
    if job.loss == "liger":
        pairs["use_liger_kernel"] = True
    command = f"torchrun --nproc_per_node {job.num_gpus} train.py"
    return Written(pairs, _allocator(job), command, is_file=False, launcher="nproc_per_node")


def _allocator(job: Job) -> dict[str, str]:
    return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if job.expandable_segments else {}


WRITERS: Mapping[str, Callable[[str, Job], Written]] = {
    "swift": swift,
    "llamafactory": llamafactory,
    "axolotl": axolotl,
    "trl": trl,
    "transformers": transformers,
}
"""By the name that `suggest --for` takes."""
PACKAGES = {"swift": "ms-swift"}
"""Their packages, where those are called otherwise."""
COMPARED = (
    "method", "lora_rank", "lora_targets", "lora_dropout", "lora_dtype", "dtype", "autocast", "quantize", "optimizer",
    "vision", "projector", "max_pixels", "max_tiles", "images", "sequence_length", "micro_batch_size",
    "gradient_accumulation_steps", "checkpointing", "attention", "loss", "num_gpus",
)  # fmt: skip
"""Fields that must come back when what was written is read again."""


def unsaid(job: Job, again: Job) -> list[str]:
    """Fields that the framework, reading what was written for it, takes otherwise."""
    skipped = {"lora_rank", "lora_targets", "lora_dropout", "lora_dtype"} if job.method == "full" else set()
    found = [name for name in COMPARED if name not in skipped and getattr(job, name) != getattr(again, name)]
    return [*found, "batches"] if (job.batches == "packed") != (again.batches == "packed") else found


def write(framework: str, model: str, job: Job) -> Written:
    """The job in a framework's own words.

    Raises:
        UnsupportedError: for a framework that nothing is written for.
    """
    if framework not in WRITERS:
        raise UnsupportedError(f"--for {framework}: nothing is written for it yet; known: {', '.join(WRITERS)}")
    return WRITERS[framework](model, job)
