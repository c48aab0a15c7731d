"""ms-swift's GRPOTrainer of vision-language models on fake tensors: what it scores, and trains on, of images."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import nn

from tests.swift_grpo_trace import COPIED, SwiftGrpo, SwiftGrpoRun
from tests.trl_seeing_trace import Images, Seeing
from tests.trl_trace import Setup

ARCHITECTURES = {"qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_vl", "qwen3_vl": "qwen3_vl"}
"""Types of models -> ms-swift's name of the places of tower, projector and language model (model/model_arch.py)."""


class SeeingSwiftGrpo(Images, SwiftGrpo):
    """GRPOTrainer of ms-swift with its own checkpointing, and its template's hook in front of the model."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        """The trainer."""
        from swift.model.model_arch import get_model_arch
        from swift.model.models.qwen import _patch_deepstack_process
        from swift.model.patcher import patch_get_input_embeddings
        from swift.template.templates import qwen

        config: Any = model.config
        kind = config.model_type
        for one in (model, reference):
            if one is not None:
                patch_get_input_embeddings(one.model.visual, "patch_embed")
            if one is not None and kind == "qwen3_vl":
                _patch_deepstack_process(one.model.language_model)  # its forward() is transformers' without DeepSpeed
        trainer = super().trainer(model, peft, folder, words, reference)
        trainer.is_multimodal = True
        own: type[Any] = qwen.Qwen3VLTemplate if kind == "qwen3_vl" else qwen.Qwen2VLTemplate
        template = own.__new__(own)
        template.mode, template.processor = "train", words
        template.get_base_model = trainer.template.get_base_model
        for one in (trainer.model, trainer.ref_model):
            if one is None:
                continue
            base = template.get_base_model(one)
            base.model_meta = SimpleNamespace(is_multimodal=True, model_arch=get_model_arch(ARCHITECTURES[kind]))
            if not hasattr(base, "visual"):
                base.__dict__["visual"] = base.model.visual
            one.register_forward_pre_hook(template.pre_forward_hook, with_kwargs=True)
        base = template.get_base_model(trainer.model)
        trainer.args.vit_gradient_checkpointing = trainer.args.gradient_checkpointing

        def enable(settings: Any) -> None:
            del trainer.model.gradient_checkpointing_enable
            trainer._prepare_gradient_checkpointing(base)

        if self.job.checkpointing == "none":
            trainer._prepare_gradient_checkpointing(base)
        else:
            trainer.model.gradient_checkpointing_enable = enable
        return trainer

    def batch(self) -> dict[str, Any]:
        """A micro-batch of a generation."""
        rows = self.rows(self.job.micro_batch_size)
        shape = rows["input_ids"].shape
        rows |= {
            "position_ids": torch.zeros(3, *shape, dtype=torch.int64),
            "text_position_ids": torch.zeros(shape, dtype=torch.int64),
        }
        self.seen = tuple(rows)
        return {**super().batch(), **rows}

    def inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch as the trainer keeps it."""
        rest = {name: one for name, one in batch.items() if name not in self.seen or name in COPIED}
        return {**super().inputs(rest), "model_inputs": {name: batch[name] for name in self.seen}}


class SeeingSwiftGrpoRun(Seeing, SwiftGrpoRun):
    """A tracked run in which completions of prompts with images are scored in front of each optimizer step."""

    setups: ClassVar[dict[str, type[Setup]]] = {"grpo": SeeingSwiftGrpo}

    def _step(self, trainer: Any, model: nn.Module, optimizer: Any) -> None:
        self.tracker.enter("scoring")
        if waiting := self.job.gradient_accumulation_steps - 1:
            tensors = [tensor for tensor in self.setup.batch().values() if tensor.dim()]
            self.encoded = [torch.empty(waiting * x.shape[0], *x.shape[1:], dtype=x.dtype) for x in tensors]
            del tensors
        super()._step(trainer, model, optimizer)

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.scores:
            self.encoded = []  # they are what the trainer holds
        return tensor
