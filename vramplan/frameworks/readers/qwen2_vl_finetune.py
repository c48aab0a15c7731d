"""2U1's Qwen2-VL-Finetune: ``src/train/train_sft.py`` (of 6695161; params.py, train_sft.py; transformers 4.56.1).

Weights, tower and adapters are in the dtype of bf16 or fp16; Liger's fused head by default; samples are not cut.
"""

from __future__ import annotations

from ast import literal_eval
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.framework import Framework, Program
from vramplan.frameworks.liger import ALL_KERNELS
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig
from vramplan.frameworks.readers.trainer_arguments import (
    NAMES,
    adapter_fields,
    autocast_dtype,
    eval_batch_size,
    experts_field,
    num_processes,
    read_checkpointing,
    trainer_fields,
)
from vramplan.frameworks.readers.video_sampling import Sampling
from vramplan.frameworks.settings import ConfigReader

PACKAGE = "qwen2-vl-finetune"
MODEL = "Qwen/Qwen2-VL-7B-Instruct"
MAX_PIXELS, MIN_PIXELS, VIDEO_PIXELS = 12845056, 3136, 602112
FREEZES = ("freeze_vision_tower", "freeze_merger", "freeze_llm")
PLAIN_EXCLUDED = {"lm_head", "embed_tokens"}
KEYS: dict[str, KeyNames] = {
    "max_pixels": "image_max_pixels",
    "loss": {"liger": "use_liger True"},
    "attention": {"flash": "disable_flash_attn2 False", "sdpa": "disable_flash_attn2 True"},
    "strategy": {"zero3": "deepspeed scripts/zero3.json"},
    "offload": {"all": "deepspeed scripts/zero3_offload.json"},
}


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a command that runs train_sft.py."""
    job = trainer_fields(config, optimizer="adamw_torch")
    if config.integer("bits", default=16) != 16:
        raise config.unsupported("bits", "keeps the vision tower in fp32, which is not modelled yet; modelled: 16")
    half = autocast_dtype(config)
    job |= {"dtype": "fp32" if half == "none" else half, "autocast": half}
    job["attention"] = "sdpa" if config.boolean("disable_flash_attn2", default=False) else "flash"
    if config.boolean("use_liger", default=True):
        job |= ALL_KERNELS  # the head is fused by its own forward
    job |= _trained(config) | experts_field(True)
    job["checkpointing"] = read_checkpointing(config)
    if config.has("max_seq_length"):
        config.note("warning", "max_seq_length", "is not read by the script: samples are not cut; give --seq-len")
    for name in ("image_resized_width", "image_resized_height"):
        config.require_off(name, why="is not modelled yet; use image_max_pixels")
    job |= {
        "max_pixels": config.integer("image_max_pixels", default=MAX_PIXELS),
        "min_pixels": config.integer("image_min_pixels", default=MIN_PIXELS),
        "num_gpus": num_processes(config, num_gpus),
    }
    model = config.string("model_id") or MODEL
    parsed = ParsedConfig(PACKAGE, "with transformers 4.56.1", model, job, NAMES | KEYS, config.notes)
    parsed.resizes_images = False  # qwen_vl_utils resizes by the rule of the processor
    parsed.eval_batch_size = eval_batch_size(config, 8, config.has("eval_path"))
    frames = config.integer("nframes", default=1) if config.has("nframes") else None
    pixels = config.integer("video_max_pixels", default=VIDEO_PIXELS)
    keys = tuple(name for name in ("nframes", "video_max_pixels", "video_min_pixels", "fps") if config.has(name))
    parsed.video_sampling = Sampling(frames, pixels, keys=keys)
    return parsed


def _trained(config: ConfigReader) -> dict[str, Any]:
    """What trains: every part that is not frozen, or adapters on linear layers of the text and the tower.

    Raises:
        ConfigError: for what the script stops at.
        UnsupportedError: for parts that train in full beside adapters, and adapters on embeddings.
    """
    freezes = {name: config.boolean(name, default=False) for name in FREEZES}
    if not config.boolean("lora_enable", default=False):
        if config.boolean("vision_lora", default=False):
            raise ConfigError(f"{config.place('vision_lora')}: vision_lora: the script stops at it without lora_enable")
        if freezes["freeze_llm"]:
            raise config.unsupported(
                "freeze_llm", "without lora_enable: a frozen language model whose other parts train is not modelled yet"
            )
        parts = {"vision": "freeze_vision_tower", "projector": "freeze_merger"}
        return {"method": "full"} | {part: "frozen" if freezes[name] else "train" for part, name in parts.items()}
    if not freezes["freeze_llm"]:
        raise ConfigError(f"{config.place('lora_enable')}: lora_enable: the script stops at it without freeze_llm True")
    for name in FREEZES[:2]:
        if not freezes[name]:
            raise config.unsupported(
                name, "is off (the default): a part that trains in full beside adapters is not modelled yet; set True"
            )
    excluded = _excluded(config)
    if not excluded >= PLAIN_EXCLUDED or excluded - PLAIN_EXCLUDED - {"visual", "merger"}:
        raise config.unsupported(
            "lora_namespan_exclude",
            "gives other layers an adapter than is modelled (embeddings and the head by default); modelled:"
            " \"['lm_head', 'embed_tokens']\", with or without visual",
        )
    if config.integer("num_lora_modules", default=-1, least=-1) != -1:
        raise config.unsupported("num_lora_modules")
    job: dict[str, Any] = {"method": "lora"} | adapter_fields(
        config, "lora_rank", default_rank=64, default_dropout=0.05
    )
    if config.boolean("use_dora", default=False):
        config.note("warning", "use_dora", "is not read by the script: plain LoRA trains")
    if config.boolean("vision_lora", default=False) and "visual" not in excluded:
        job |= {"vision": "lora", "projector": "frozen" if "merger" in excluded else "lora"}
    return job


def _excluded(config: ConfigReader) -> set[str]:
    """Parts of names of the layers that get no adapter: a list in Python's spelling."""
    text = config.string("lora_namespan_exclude")
    if text is None:
        return set()
    try:
        names = literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        names = None
    if not isinstance(names, (list, tuple)):
        raise config.invalid(("lora_namespan_exclude",), "a list such as ['lm_head', 'embed_tokens']")
    return {str(name) for name in names}


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    programs=(
        Program("train/train_sft.py", frozenset({"model_id", "freeze_merger", "image_max_pixels", "vision_lora"})),
        Program("src/training/train.py", frozenset({"model_id", "freeze_merger", "vision_lora"})),
        Program("src/train/train_dpo.py", unread="preference training"),
        Program("src/train/train_grpo.py", unread="reinforcement training"),
        Program("src/train/train_cls.py", unread="training of a classifier"),
    ),
    inherits=("transformers",),
)
