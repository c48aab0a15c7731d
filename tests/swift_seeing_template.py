"""ms-swift's template of a vision-language model: in front of its trainers' models, images become embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

ARCHITECTURES = {"qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_vl", "qwen3_vl": "qwen3_vl"}
"""Types of models -> ms-swift's name of the places of tower, projector and language model (model/model_arch.py)."""


def as_loaded(*models: nn.Module | None) -> None:
    """What ms-swift changes in models that it loads."""
    from swift.model.models.qwen import _patch_deepstack_process
    from swift.model.patcher import patch_get_input_embeddings

    for one in models:
        if one is None:
            continue
        patch_get_input_embeddings(one.model.visual, "patch_embed")  # type: ignore[union-attr, arg-type]
        if one.config.model_type == "qwen3_vl":  # type: ignore[union-attr]
            _patch_deepstack_process(one.model.language_model)  # its forward() is transformers' without DeepSpeed


def use_template(trainer: Any, kind: str, words: Any) -> Any:
    """Give a trainer the template of a type of models, whose hook is not registered yet."""
    import transformers
    from packaging import version
    from swift.model.model_arch import get_model_arch
    from swift.template.templates import qwen

    own: type[Any] = qwen.Qwen3VLTemplate if kind == "qwen3_vl" else qwen.Qwen2VLTemplate
    template = own.__new__(own)
    rest = {"is_encoder_decoder", "padding_free", "padding_side", "packing", "task_type", "max_length"}
    rest |= {"sequence_parallel_size", "template_meta", "truncation_strategy", "get_base_model"}
    template.__dict__.update({name: one for name, one in vars(trainer.template).items() if name in rest})
    template.mode, template.processor = "train", words
    template.transformers_version = version.parse(transformers.__version__)
    template._handles, template._deepspeed_initialize = [], None
    trainer.template, trainer.is_multimodal = template, True
    meta = SimpleNamespace(is_multimodal=True, model_arch=get_model_arch(ARCHITECTURES[kind]))
    trainer.model_meta = meta
    for one in models_of(trainer):
        base = template.get_base_model(one)
        one.model_meta = base.model_meta = meta
        if not hasattr(base, "visual"):
            base.__dict__["visual"] = base.model.visual
    trainer.args.vit_gradient_checkpointing = trainer.args.gradient_checkpointing
    return template


def positions(shape: Sequence[int]) -> dict[str, torch.Tensor]:
    """What the templates of Qwen-VL add to a batch."""
    return {
        "position_ids": torch.zeros(3, *shape, dtype=torch.int64),
        "text_position_ids": torch.zeros(*shape, dtype=torch.int64),
    }


def models_of(trainer: Any) -> list[Any]:
    """The model that trains, and its reference if it is a model of its own."""
    models = trainer.model, getattr(trainer, "ref_model", None)
    return [trainer.accelerator.unwrap_model(one) for one in models if one is not None]


def register(trainer: Any, template: Any, checkpointing: bool) -> None:
    """What ms-swift's train() does before transformers' (trainers/mixin.py)."""
    for one in models_of(trainer):
        one.register_forward_pre_hook(template.pre_forward_hook, with_kwargs=True)
    base = template.get_base_model(trainer.model)

    def enable(*settings: Any, **named: Any) -> None:
        del trainer.model.gradient_checkpointing_enable
        trainer._prepare_gradient_checkpointing(base)

    if checkpointing:
        trainer.model.gradient_checkpointing_enable = enable
    else:
        trainer._prepare_gradient_checkpointing(base)
