"""QwenLM's qwen-vl-finetune: ``qwenvl/train/train_qwen.py`` (of 9658872; argument.py, train_qwen.py, trainer.py).

A script around transformers 4.57's Trainer: bf16 weights under bf16, FlashAttention-2, nothing evaluated.
"""

from __future__ import annotations

from typing import Any

from vramplan.frameworks.framework import Framework, Program
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig
from vramplan.frameworks.readers.trainer_arguments import (
    NAMES,
    autocast_dtype,
    experts_field,
    num_processes,
    read_checkpointing,
    trainer_fields,
)
from vramplan.frameworks.readers.video_sampling import Sampling
from vramplan.frameworks.settings import ConfigReader

PACKAGE = "qwen-vl-finetune"
MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"
MAX_PIXELS, MIN_PIXELS = 28 * 28 * 576, 28 * 28 * 16
VIDEO_FRAMES, VIDEO_PIXELS = 8, 1024 * 28 * 28
LENGTH = 512
LORA_RANK, LORA_DROPOUT = 64, 0.05
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
"""The text's attention alone: the tower's layers have other names."""
KEYS: dict[str, KeyNames] = {
    "sequence_length": "model_max_length",
    "max_pixels": "max_pixels",
    "method": {"lora": "lora_enable True"},
    "strategy": {"zero3": "deepspeed ./scripts/zero3.json"},
    "offload": {"all": "deepspeed ./scripts/zero3_offload.json"},
}


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a command that runs train_qwen.py."""
    job = trainer_fields(config, optimizer="adamw_torch")
    autocast = autocast_dtype(config)
    if autocast != "bf16":  # from_pretrained gets no dtype
        config.note("warning", "bf16", "is not set: weights are loaded in fp32")
    job |= {"dtype": "bf16" if autocast == "bf16" else "fp32", "autocast": autocast, "attention": "flash"}
    job |= _trained(config) | experts_field(True)
    job["checkpointing"] = read_checkpointing(config)
    names = NAMES | KEYS
    if config.boolean("data_flatten", default=False) or config.boolean("data_packing", default=False):
        job["batches"] = "packed"
        names = {field: key for field, key in names.items() if field != "sequence_length"}
        config.read_keys.add("model_max_length")
        config.note(
            "warning",
            "model_max_length",
            "cuts nothing beside data_flatten and data_packing (data_processor.py): samples are as long as they are",
        )
    else:
        job["sequence_length"] = config.integer("model_max_length", default=LENGTH)
        if not config.has("model_max_length"):
            config.note("default", "model_max_length", f"not set: {LENGTH}")
    job |= {
        "max_pixels": config.integer("max_pixels", default=MAX_PIXELS),
        "min_pixels": config.integer("min_pixels", default=MIN_PIXELS),
        "num_gpus": num_processes(config, num_gpus),
    }
    model = config.string("model_name_or_path") or MODEL
    parsed = ParsedConfig(PACKAGE, "with transformers 4.57", model, job, names, config.notes)
    parsed.resizes_images = False  # the processor's own limits are set
    parsed.video_sampling = Sampling(
        config.integer("video_max_frames", default=VIDEO_FRAMES),
        config.integer("video_max_pixels", default=VIDEO_PIXELS),
        keys=tuple(name for name in ("video_max_frames", "video_max_pixels") if config.has(name)),
    )
    return parsed


def _trained(config: ConfigReader) -> dict[str, Any]:
    """What trains: adapters alone, or the parts that tune_mm_* switches on.

    Raises:
        UnsupportedError: for a frozen language model without adapters.
    """
    parts = {name: config.boolean(name, default=False) for name in ("tune_mm_llm", "tune_mm_mlp", "tune_mm_vision")}
    if config.boolean("lora_enable", default=False):
        if any(parts.values()):
            config.note("warning", "lora_enable", "adapters train alone: tune_mm_* has no effect beside it")
        rank = config.integer("lora_r", default=LORA_RANK, least=0) or LORA_RANK
        dropout = config.number("lora_dropout", default=0.0) or LORA_DROPOUT
        return {"method": "lora", "lora_rank": rank, "lora_dropout": dropout, "lora_targets": TARGETS}
    if not parts["tune_mm_llm"]:
        raise config.unsupported(
            "tune_mm_llm",
            "is off: training the projector or the tower beside a frozen language model is not modelled yet; modelled:"
            " tune_mm_llm True, or lora_enable True",
        )
    if (
        parts["tune_mm_mlp"]
        and not parts["tune_mm_vision"]
        and "qwen3" in (config.string("model_name_or_path") or MODEL).lower()
    ):
        config.note("warning", "tune_mm_mlp", "leaves Qwen3-VL's deepstack mergers frozen; they are counted as trained")
    return {
        "method": "full",
        "vision": "train" if parts["tune_mm_vision"] else "frozen",
        "projector": "train" if parts["tune_mm_mlp"] else "frozen",
    }


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    programs=(Program("train/train_qwen.py"), Program("train_qwen.py", frozenset({"tune_mm_llm", "tune_mm_mlp"}))),
    inherits=("transformers",),
)
