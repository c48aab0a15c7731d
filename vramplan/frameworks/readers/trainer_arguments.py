"""transformers' TrainingArguments: what ms-swift, LLaMA-Factory, TRL and plain scripts have in common."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.known_keys import refuse_unmodelled
from vramplan.frameworks.parsed_config import ParsedConfig, Words, at_least, visible_cards
from vramplan.frameworks.readers import fsdp_config as fsdp
from vramplan.frameworks.readers import zero_config
from vramplan.frameworks.settings import TRUE, ConfigReader

DTYPES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16", "float32": "fp32"}
DTYPES |= {"fp32": "fp32", "float": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
ATTENTION = {"flash_attn": "flash", "flash_attention_2": "flash", "fa2": "flash", "flash_attn_2": "flash"}
ATTENTION |= {"sdpa": "sdpa", "eager": "eager", "disabled": "eager", "auto": "", "flash_attention": "flash"}
BATCH = "per_device_train_batch_size"
LENGTHS = ("block_size", "max_seq_length", "max_length", "model_max_length", "cutoff_len")
"""What scripts call the length of a sample."""
NAMES: dict[str, Words] = {
    "micro_batch_size": BATCH,
    "eval_batch_size": "per_device_eval_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "optimizer": "optim",
    "loss": {"liger": "use_liger_kernel true"},
    "checkpointing": {"full": "gradient_checkpointing true"},
    "attention": {"sdpa": "attn_implementation sdpa", "flash": "attn_implementation flash_attention_2"},
    "dtype": {"bf16": "dtype bfloat16", "fp16": "dtype float16", "fp32": "dtype float32"},
    "autocast": {"bf16": "fp16 false; bf16 true", "fp16": "bf16 false; fp16 true"},
    "lora_dropout": "lora_dropout",
}
PYTHON: dict[str, Words] = {
    "dtype": {"bf16": "dtype torch.bfloat16", "fp16": "dtype torch.float16", "fp32": "dtype torch.float32"},
    "quantize": {
        "nf4": "quantization_config BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)",
        "int8": "quantization_config BitsAndBytesConfig(load_in_8bit=True)",
    },
}
"""The same where a script's own calls say it."""
ALL_LINEAR = 'LoraConfig(target_modules="all-linear")'


def arguments(
    keys: ConfigReader,
    micro_batch_size: int = 8,
    accumulation: int | None = 1,
    size: tuple[str, ...] = (BATCH,),
    fsdp_version: int = fsdp.VERSION,
) -> dict[str, Any]:
    """The fields of a job that all of the family say alike; dtypes, checkpointing, length are each one's own."""
    refuse_unmodelled(keys)
    if all(keys.text(name, default="false") in TRUE for name in ("bf16", "fp16")):
        raise keys.wrong(("fp16",), "false beside bf16: transformers takes one of both")
    job: dict[str, Any] = {
        "loop": "trainer",
        "micro_batch_size": keys.count(*size, default=micro_batch_size),
        "optimizer": keys.text("optim", default="adamw_torch_fused"),
    }
    if not keys.has(*size):
        keys.note("default", size[0], f"not set: {micro_batch_size}")
    if accumulation is not None or keys.has("gradient_accumulation_steps"):
        job["gradient_accumulation_steps"] = keys.count("gradient_accumulation_steps", default=accumulation or 1)
    if keys.flag("use_liger_kernel", default=False):
        config = keys.part("liger_kernel_config")
        fused = config is None or config.flag("fused_linear_cross_entropy", default=True)
        job["loss"] = "liger" if fused else "standard"
    job["batches"] = "padded" if job["micro_batch_size"] > 1 else "unpadded"
    if keys.source.spelling == "python" and keys.flag("prepare_for_kbit_training", default=False):
        job["prepare_for_kbit_training"] = True
    for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        extra = keys.part(name)
        if extra is not None and extra.source.settings.keys() - {"use_reentrant", "preserve_rng_state"}:
            raise keys.refuse(name)
    return job | zero_config.referenced(keys) | fsdp.referenced(keys, fsdp_version)


def adapters(
    keys: ConfigReader, *rank: str, usual: int = 8, dropouts: tuple[str, ...] = ("lora_dropout",), dropout: float = 0.0
) -> dict[str, Any]:
    """Rank and dropout: what each is called, and what it is where nothing is said."""
    return {
        "lora_rank": keys.count(*rank, default=usual),
        "lora_dropout": keys.number(*dropouts, default=dropout),
    }


def quantized(keys: ConfigReader, dtype: str, job: dict[str, Any]) -> dict[str, Any]:
    """Four bits, whose layers have to compute in the dtype of all others; scales twice only where asked for."""
    if not keys.flag("load_in_4bit", default=False):
        return {"quantize": "int8"} if keys.flag("load_in_8bit", default=False) else {}
    computed = dtype_of(keys, "bnb_4bit_compute_dtype") or dtype
    if dtype == "fp32" or computed != dtype:
        name = "bnb_4bit_compute_dtype" if computed != "bf16" and keys.has("bnb_4bit_compute_dtype") else "load_in_4bit"
        raise keys.refuse(
            name, f"computing in {computed} over {dtype} is not modelled yet; give bfloat16 or float16 for both"
        )
    return {"quantize": "nf4", "double_quant": keys.flag("use_bnb_nested_quant", default=False)} | storage(keys, job)


def storage(keys: ConfigReader, job: dict[str, Any]) -> dict[str, str]:
    """What four bits are packed in, where that decides who can divide them; transformers takes uint8."""
    given = keys.text("bnb_4bit_quant_storage", default="uint8")
    if given not in (*DTYPES, "uint8"):
        raise keys.refuse("bnb_4bit_quant_storage")
    return {"quant_storage": DTYPES.get(given, given)} if job.get("strategy") in ("fsdp", "zero3") else {}


def beside(keys: ConfigReader, dora: str, saved: str) -> dict[str, Any]:
    """What goes with an adapter: DoRA's magnitudes, modules that train whole; what each is called."""
    job: dict[str, Any] = {"method": "dora"} if keys.flag(dora, default=False) else {}
    named = tuple(word for one in keys.names(saved) for word in one.split())
    return job | ({"modules_to_save": named} if named else {})


def reentrant(keys: ConfigReader, job: dict[str, Any], usual: bool, outside: bool = False) -> dict[str, Any]:
    """The kind of checkpointing, where it matters.

    It does for int8 layers, whose inputs only the older kind drops, and under FSDP 1 where checkpointing goes around
    the layers (`outside`).
    """
    if job["checkpointing"] != "full":
        return {}
    fsdp = job.get("fsdp", {})
    outside &= fsdp.get("version") == 1
    if job.get("quantize") != "int8" and not outside:
        return {}
    said = keys.part("gradient_checkpointing_kwargs")
    older = usual if said is None else said.flag("use_reentrant", default=usual)
    return {"reentrant": older} | ({"fsdp": fsdp | {"checkpoint_wraps_fsdp": True}} if outside and older else {})


def loaded(job: dict[str, Any], before_5: bool) -> dict[str, Any]:
    """Transformers before 5 loads a quantized base to the host for FSDP (_load_state_dict_into_meta_model)."""
    if not before_5 or "quantize" not in job or job.get("strategy") != "fsdp":
        return {}
    return {"fsdp": job["fsdp"] | {"loads_whole_model": False}}


def mapped(job: dict[str, Any]) -> dict[str, bool]:
    """A device_map, which most frameworks give from_pretrained unless weights are divided as they are loaded."""
    return {} if job.get("strategy") in ("zero3", "fsdp") else {"device_map": True}


def parts(method: str) -> dict[str, str]:
    """Tower and projector where nothing freezes them: they train, or PEFT finds its targets' names in them too."""
    return dict.fromkeys(("vision", "projector"), "train" if method == "full" else "lora")


def experts(before_5: bool) -> dict[str, str]:
    """Experts of a mixture are linear layers of their own in transformers before 5."""
    return {"experts": "linear"} if before_5 else {}


def checkpoints_outside(transformers: str) -> bool:
    """Whether this version checkpoints a layer from outside; since 4.52 the layer does (GradientCheckpointingLayer)."""
    return not at_least(transformers, "4.52")


def leaves(job: dict[str, Any]) -> dict[str, Any]:
    """ms-swift and LLaMA-Factory make every mixture of experts one module to ZeRO-3 (set_z3_leaf_modules)."""
    return {"zero": {**job.get("zero", {}), "leaf_mixtures": True}} if job.get("strategy") == "zero3" else {}


def half_of(keys: ConfigReader) -> str:
    """The half-precision type of autocast."""
    return next((name for name in ("bf16", "fp16") if keys.flag(name, default=False)), "none")


def checkpointing(keys: ConfigReader) -> str:
    """Off where nothing is said, which is told."""
    if keys.flag("gradient_checkpointing", "activation_checkpointing", default=False):
        return "full"
    if not keys.has("gradient_checkpointing", "activation_checkpointing"):
        keys.note("default", "gradient_checkpointing", "not set: every layer keeps its activations")
    return "none"


def evaluation(keys: ConfigReader, micro_batch_size: int, runs: bool) -> int | None:
    """Samples in an evaluation's forward, where one is run."""
    size = keys.count("per_device_eval_batch_size", default=micro_batch_size)
    strategy = keys.text("eval_strategy", "evaluation_strategy", default="steps" if runs else "no")
    return None if strategy == "no" or not runs else size


def attention(keys: ConfigReader, *names: str) -> dict[str, str]:
    """The attention, where it is said."""
    given = keys.text(*names, default="")
    if not given:
        return {}
    if given not in ATTENTION:
        raise keys.refuse(next(name for name in names if keys.has(name)))
    return {"attention": ATTENTION[given]} if ATTENTION[given] else {}


def dtype_of(keys: ConfigReader, *names: str) -> str | None:
    """A dtype, where one is said; auto is the checkpoint's own."""
    given = keys.text(*names, default="auto")
    if given == "auto":
        return None
    if given not in DTYPES:
        raise keys.wrong(names, f"a dtype ({', '.join(sorted(set(DTYPES)))})")
    return DTYPES[given]


def published(keys: ConfigReader) -> str | None:
    """The dtype of the checkpoint, where that is known."""
    model = keys.source.model
    own = None if model is None else model.published_dtype
    if own == "fp16" and dtype_of(keys, "bnb_4bit_compute_dtype") == "bf16":
        return "bf16"  # as large; what is cast for a product goes with it
    return own


def taken_over(keys: ConfigReader, name: str, loads: str) -> str:
    """The dtype of the checkpoint, which `loads` takes over, with a word on what that comes to."""
    own = published(keys)
    said = "taken as bf16; fp32 would take twice as much" if own is None else f"{own} here"
    given = "" if keys.has(name) else "not set: "
    keys.note("warning", name, f"{given}{loads} the checkpoint's own dtype, {said}")
    return own or "bf16"


def sharing(keys: ConfigReader, cards: int, count: Callable[[ConfigReader, int], int]) -> dict[str, Any]:
    """How many cards there are, by `count`, and whether a ``device_map`` spreads the model over them.

    Raises:
        ConfigError: for a device_map over several cards in several processes.
        UnsupportedError: for another one than auto over several cards.
    """
    keys.asked.add("device_map")
    found = keys.source.settings.get("device_map")  # what only a run would tell is one card
    placed = found.value if found is not None else None
    said = {"nproc_per_node", "num_processes"} & keys.source.settings.keys()
    if placed not in ("auto", "balanced", "balanced_low_0", "sequential"):
        return {"num_gpus": count(keys, cards)} | ({} if placed is None else {"device_map": True})
    several = count(keys, cards) if said else visible_cards(keys, cards)
    if several == 1:
        return {"num_gpus": 1, "device_map": True}
    if said:
        raise ConfigError(
            f"{keys.place('device_map')}: device_map {placed} in {several} processes: accelerate refuses to train what"
            " is spread over cards there; leave device_map out"
        )
    if placed not in ("auto", "balanced"):
        raise keys.refuse("device_map", f"{placed} over {several} cards is not modelled yet; modelled: auto")
    return {"strategy": "device_map", "num_gpus": several}


def ranks(keys: ConfigReader, cards: int) -> int:
    """Processes that a launcher was told to start; one card each."""
    said = keys.source.settings.get("nproc_per_node") or keys.source.settings.get("num_processes")
    keys.asked |= {"nproc_per_node", "num_processes", "nnodes", "num_machines"}
    if said is None:
        several = visible_cards(keys, cards)
        if several > 1:
            raise UnsupportedError(
                f"{several} cards are visible and no launcher is used: transformers runs DataParallel, which is not"
                f" modelled; use torchrun --nproc_per_node {several}, or CUDA_VISIBLE_DEVICES=0"
            )
        return 1
    if str(said.value) in ("all", "gpu", "auto", "-1"):
        return visible_cards(keys, cards)
    return keys.count("nproc_per_node", "num_processes", default=1) * keys.count("nnodes", default=1)


def launched(keys: ConfigReader, cards: int) -> int:
    """The same of a command that starts a process for each card that it sees, where nothing is said."""
    said = {"nproc_per_node", "num_processes"} & keys.source.settings.keys()
    return ranks(keys, cards) if said else visible_cards(keys, cards)


LAYERS = ("model.layers.0.", "model.language_model.layers.0.", "language_model.model.layers.0.", "layers.0.")
LINEAR = tuple(f"self_attn.{one}_proj" for one in "qkvo") + tuple(f"mlp.{one}_proj" for one in ("gate", "up", "down"))


def capped(keys: ConfigReader, reading: ParsedConfig) -> None:
    """Caps on images that a script gave its processor, which keeps to them itself."""
    if keys.source.spelling == "python":
        names = [name for name in ("min_pixels", "max_pixels") if keys.has(name)]
        reading.job |= {name: keys.count(name, default=1) for name in names}
        reading.names = {**reading.names, "max_pixels": "max_pixels"}
        reading.caps_resize = False


def targets(keys: ConfigReader, name: str) -> tuple[str, ...] | None:
    """The layers that get an adapter: names, or the ones that PEFT's regular expression means; None for all-linear.

    Raises:
        UnsupportedError: for an expression that means none of a decoder's usual layers.
    """
    given = keys.names(name)
    found = keys.setting(name)
    if not given or given == ("all-linear",):
        return None
    if found is None or isinstance(found.value, list) or not set("[](|*\\+^") & set(str(found.value)):
        return given
    try:
        pattern = re.compile(str(found.value))
    except re.error:
        raise keys.wrong((name,), "names, or a regular expression") from None
    meant = [one for one in LINEAR if any(pattern.fullmatch(f"{layer}{one}") for layer in LAYERS)]
    if not meant:
        raise keys.refuse(name, "means none of the layers that are known by name; give names")
    return tuple(one.rpartition(".")[2] for one in meant)
