"""InternVL: ``internvl/train/internvl_chat_finetune.py`` (internvl_chat of 2410d1d; transformers 4.37.2).

The whole model is loaded in bf16 and runs FlashAttention; the tower's layers are always checkpointed; the loss shifts
fp32 logits (model/internvl_chat/modeling_internvl_chat.py).
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
    trainer_fields,
)
from vramplan.frameworks.settings import ConfigReader

PACKAGE = "internvl"
LENGTH, MAX_PATCHES, LORA_DROPOUT = 8192, 12, 0.05
MARKS = frozenset({"max_dynamic_patch", "use_llm_lora", "freeze_backbone", "down_sample_ratio", "conv_style"})
KEYS: dict[str, KeyNames] = {
    "sequence_length": "max_seq_length",
    "checkpointing": {"full": "grad_checkpoint True"},
    "max_tiles": "max_dynamic_patch",
    "strategy": {"zero3": "deepspeed zero_stage3_config.json"},
}


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a command that runs internvl_chat_finetune.py.

    Raises:
        UnsupportedError: for packed data, parts loaded one by one, and combinations that a job cannot say.
    """
    job = trainer_fields(config, optimizer="adamw_torch")
    model = config.string("model_name_or_path")
    if model is None:
        raise config.unsupported(
            "llm_path", "and vision_path put a model together, which is not modelled yet; modelled: model_name_or_path"
        )
    config.require_off(
        "use_packed_ds", why="pads every row with images (num_images_expected), which is not modelled yet"
    )
    job |= {"dtype": "bf16", "autocast": autocast_dtype(config), "attention": "flash", "loss": "sliced_fp32"}
    job |= _trained(config) | experts_field(True)
    job["checkpointing"] = "full" if config.boolean("grad_checkpoint", default=True) else "none"
    if job["checkpointing"] == "none" and job.get("vision", "frozen") != "frozen":
        raise config.unsupported(
            "grad_checkpoint",
            "with a tower that trains, whose layers are checkpointed all the same, is not modelled yet",
        )
    if config.has("gradient_checkpointing"):
        config.note("warning", "gradient_checkpointing", "is not what InternVL's script asks: grad_checkpoint is")
    job["sequence_length"] = config.integer("max_seq_length", default=LENGTH)
    if not config.has("max_seq_length"):
        config.note("default", "max_seq_length", f"not set: {LENGTH}")
    tiles = config.integer("max_dynamic_patch", default=MAX_PATCHES)
    is_tiled = config.boolean("dynamic_image_size", default=False)
    job["max_tiles"] = tiles if is_tiled else 1
    if is_tiled and not config.boolean("use_thumbnail", default=False):
        config.note("warning", "use_thumbnail", "is off: the thumbnail beside the tiles is counted all the same")
    if config.boolean("use_liger", default=False):
        config.note("warning", "use_liger", "its kernels are not counted: the layers keep less")
    job["num_gpus"] = num_processes(config, num_gpus)
    return ParsedConfig(PACKAGE, "with transformers 4.37.2", model, job, NAMES | KEYS, config.notes)


def _trained(config: ConfigReader) -> dict[str, Any]:
    """What trains: parts that are not frozen, or adapters on the linear layers of the text and the tower."""
    ranks = {name: config.integer(name, default=0, least=0) for name in ("use_llm_lora", "use_backbone_lora")}
    trains = {name: not config.boolean(name, default=False) for name in ("freeze_llm", "freeze_backbone", "freeze_mlp")}
    if ranks["use_llm_lora"]:
        if trains["freeze_mlp"]:
            raise config.unsupported(
                "freeze_mlp", "is off: a projector that trains beside adapters is not modelled yet; set True"
            )
        if ranks["use_backbone_lora"] not in (0, ranks["use_llm_lora"]):
            raise config.unsupported("use_backbone_lora", "with another rank than use_llm_lora is not modelled yet")
        if trains["freeze_backbone"] and not ranks["use_backbone_lora"]:
            raise config.unsupported(
                "freeze_backbone", "is off: a tower that trains beside adapters is not modelled yet; set True"
            )
        return {
            "method": "lora",
            "lora_rank": ranks["use_llm_lora"],
            "lora_dropout": LORA_DROPOUT,
            "vision": "lora" if ranks["use_backbone_lora"] else "frozen",
        }
    if ranks["use_backbone_lora"]:
        raise config.unsupported("use_backbone_lora", "without use_llm_lora is not modelled yet")
    if not trains["freeze_llm"]:
        raise config.unsupported(
            "freeze_llm",
            "without use_llm_lora: a frozen language model whose other parts train is not modelled yet; modelled:"
            " freeze_llm False, or use_llm_lora",
        )
    parts = {"vision": "freeze_backbone", "projector": "freeze_mlp"}
    return {"method": "full"} | {part: "train" if trains[name] else "frozen" for part, name in parts.items()}


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    programs=(
        Program("internvl/train/internvl_chat_finetune.py"),
        Program("internvl_chat_finetune.py", MARKS),
        Program("internvl/train/internvl_chat_pretrain.py", unread="pretraining with its own data loader"),
        Program("internvl/train/internvl_chat_dpo.py", unread="preference training"),
        Program("internvl/train/internvl_chat_mpo.py", unread="preference training"),
    ),
    marks=MARKS,
    inherits=("transformers",),
)
