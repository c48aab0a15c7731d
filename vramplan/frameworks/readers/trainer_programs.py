"""What projects' own training scripts around transformers' Trainer share: versions, GPUs, k-bit layers, evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.errors import UnknownNameError
from vramplan.frameworks.losses_by_version import loss_of
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, at_least, hold_back, resolve_version, visible_gpus
from vramplan.frameworks.readers.trainer_arguments import (
    NAMES,
    autocast_dtype,
    checkpoint_dtype,
    checkpoints_outside,
    eval_batch_size,
    num_processes,
    read_checkpointing,
    read_dtype,
    reentrant_fields,
    trainer_fields,
)
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.catalog import find_model

NEWEST_4 = "4.57.6"
"""The newest transformers 4: version 5 dropped arguments that most of these scripts pass (Trainer's tokenizer)."""
TYPES_OF_2023 = ("llama", "llava", "gpt_neox", "gpt2", "gptj", "gpt_bigcode", "opt", "bloom", "t5", "falcon", "bert")
"""Architectures of transformers 4.31 (models/auto/configuration_auto.py); Llama 3.1's RoPE scaling came with 4.43."""
COMMON = ("micro_batch_size", "eval_batch_size", "gradient_accumulation_steps", "optimizer", "loss", "checkpointing",
          "autocast", "lora_dropout")  # fmt: skip
"""Fields whose keys are TrainingArguments' or every script's own."""
COMPUTES_IN_FP32 = "without bf16 or fp16 computes in fp32, which is not modelled yet; add bf16 or fp16"


def transformers_version(
    config: ConfigReader, requested: str | None, pinned: str = NEWEST_4, model_key: str = "model_name_or_path"
) -> tuple[str, str]:
    """(version, its origin) of transformers under a script that runs with version 4 alone.

    `pinned` is what its project requires; a model that came later needs a newer one.
    """
    version, where = resolve_version("transformers", requested, NEWEST_4)
    if where == "given" or (where == "installed" and not at_least(version, "5.0")):
        return version, where
    if pinned != NEWEST_4 and _is_old(config, model_key):
        return pinned, "required by it"
    return NEWEST_4, "newest that runs it"


def _is_old(config: ConfigReader, model_key: str) -> bool:
    """Whether the model runs with the transformers of 2023; a model that is not known is taken to."""
    spec = config.source.model
    if spec is None:
        try:
            spec = find_model((config.string(model_key) or "").rstrip("/").rpartition("/")[2])
        except UnknownNameError:
            spec = None
    return spec is None or (spec.model_type in TYPES_OF_2023 and not spec.config.get("rope_scaling"))


def version_fields(config: ConfigReader, version: str, job: dict[str, Any]) -> dict[str, str]:
    """Fields that transformers' version alone decides."""
    fields = {"experts": "linear"} if not at_least(version, "5.0") else {}
    is_spread = job.get("strategy") == "device_map"
    loss = loss_of(version)
    if loss != "standard" and is_spread:
        config.note("doubt", "", f"the last GPU needs more: transformers {version} copies its logits, uncounted")
    elif loss != "standard" and job.get("loss", "standard") == "standard":
        fields["loss"] = loss
    if not at_least(version, "4.36"):
        fields["attention"] = "eager"  # modeling_llama.py: SDPA since 4.36
    return fields


def load_dtype(config: ConfigReader, version: str, *names: str) -> str:
    """The dtype of from_pretrained's weights by a script's `names`: fp32 before transformers 5 if it is not set."""
    dtype = read_dtype(config, *names) if names else None
    if dtype is not None:
        return dtype
    if (names and config.has(*names)) or at_least(version, "5.0"):
        return checkpoint_dtype(config, names[0] if names else "dtype", f"transformers {version} loads")
    if not config.has("deepspeed"):  # which casts it
        config.note("warning", names[0] if names else "model_name_or_path", f"transformers {version} loads it in fp32")
    return "fp32"


def checkpointing_fields(config: ConfigReader, job: dict[str, Any], version: str) -> dict[str, Any]:
    """Checkpointing by TrainingArguments' flag, reentrant by default before transformers 5."""
    fields: dict[str, Any] = {"checkpointing": job.get("checkpointing", "none")}  # FSDP's own may be on
    if fields["checkpointing"] == "none":
        fields["checkpointing"] = read_checkpointing(config)
    reentrant = not at_least(version, "5.0")
    return fields | reentrant_fields(config, job | fields, reentrant, checkpoints_outside(version))


def alpaca_fields(config: ConfigReader, version: str) -> dict[str, Any]:
    """Fields of stanford_alpaca's train.py and the scripts made from it: TrainingArguments with two more defaults."""
    job = trainer_fields(config, fsdp_version=1, optimizer="adamw_torch")
    job["autocast"] = autocast_dtype(config)
    job |= version_fields(config, version, job) | checkpointing_fields(config, job, version)
    job["sequence_length"] = config.integer("model_max_length", default=512)
    if not config.has("model_max_length"):
        config.note("default", "model_max_length", "not set: 512")
    return job


def gpu_fields(config: ConfigReader, num_gpus: int, is_spread: bool = False) -> dict[str, Any]:
    """Fields of a script that passes ``device_map="auto"`` in one process, and a launched process its own GPU.

    `is_spread` is whether it does so; others load to the host, and run DataParallel in one process on several GPUs.
    """
    is_launched = {"nproc_per_node", "num_processes"} & config.source.settings.keys()
    if is_launched or not is_spread:
        return {"num_gpus": num_processes(config, num_gpus)} | ({"device_map": True} if is_spread else {})
    count = visible_gpus(config, num_gpus)
    return {"num_gpus": 1, "device_map": True} if count == 1 else {"strategy": "device_map", "num_gpus": count}


def bits_fields(config: ConfigReader, half: str, allowed: Sequence[int], default: int) -> dict[str, Any]:
    """Bitsandbytes by qlora.py's ``--bits``, ``--quant_type`` and ``--double_quant``; empty for 16 and 32.

    Raises:
        UnsupportedError: if four-bit layers compute in fp32.
        ConfigError: for other numbers of bits.
    """
    bits = config.integer("bits", default=default)
    if bits not in allowed:
        raise config.invalid(("bits",), " or ".join(str(number) for number in allowed))
    if bits > 8:
        return {}
    if half == "none":
        raise config.unsupported("bits", COMPUTES_IN_FP32)
    if bits == 8:
        return {"quantize": "int8"}
    if config.lowercase("quant_type", default="nf4") not in ("nf4", "fp4"):  # of the same size
        raise config.invalid(("quant_type",), "nf4 or fp4")
    return {"quantize": "nf4", "double_quant": config.boolean("double_quant", default=True)}


def cast_after_kbit(half: str) -> dict[str, Any]:
    """qlora.py's casts after PEFT's preparation: under bf16, norms alone stay fp32; under fp16, all does."""
    if half == "bf16":
        return {"dtype": "bf16", "fp32_norms": True, "lora_dtype": "bf16"}
    return {"dtype": "fp16", "prepare_for_kbit_training": True, "lora_dtype": "fp32"}


def refuse_adapter_file(config: ConfigReader, name: str) -> None:
    """Refuse an adapter to continue with, whose file decides rank and targets.

    Raises:
        UnsupportedError: naming it.
    """
    config.require_off(name, why="holds its own rank and targets, which are not read; leave it out to check the rest")


def adapter_counts(
    config: ConfigReader, rank: int, dropout: float, rank_key: str = "lora_rank", dropout_key: str = "lora_dropout"
) -> dict[str, Any]:
    """Rank and dropout, by a script's defaults."""
    return {
        "lora_rank": config.integer(rank_key, default=rank),
        "lora_dropout": config.number(dropout_key, default=dropout),
    }


def finish(
    config: ConfigReader,
    name: str,
    version: tuple[str, str],
    job: dict[str, Any],
    names: dict[str, KeyNames],
    *,
    evaluates: bool | None = None,
    model_key: str = "model_name_or_path",
) -> ParsedConfig:
    """The configuration of a script; `evaluates` is whether it evaluates, None: if an evaluation strategy is set."""
    model = config.string(model_key) or ""
    shown = f"with transformers {version[0]} ({version[1]})"
    common = {key: NAMES[key] for key in COMMON if key != "loss" or at_least(version[0], "4.45")}
    parsed = ParsedConfig(name, shown, model, job, common | names, config.notes)
    if evaluates is None:
        evaluates = config.has("eval_strategy", "evaluation_strategy")
    parsed.eval_batch_size = eval_batch_size(config, 8, evaluates)
    if config.has("max_train_samples"):
        most = config.integer("max_train_samples", default=1, least=-1)
        parsed.num_train_samples = hold_back(0, most) if most > 0 else parsed.num_train_samples
    return parsed


def script_of(config: ConfigReader) -> str:
    """The name of the script that a command runs, by its path or as a module; empty for a configuration file."""
    words = config.source.command
    return "" if not words else words[0].removesuffix(".py").replace(".", "/").rpartition("/")[2]
