"""ms-swift's GRPOTrainer of vision-language models on fake tensors: what it scores, and trains on, of images."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from tests.swift_grpo_trace import SwiftGrpo, SwiftGrpoRun, of_model
from tests.swift_seeing_template import as_loaded, positions, register, use_template
from tests.trl_seeing_trace import Images, Seeing
from tests.trl_trace import Setup


class SeeingSwiftGrpo(Images, SwiftGrpo):
    """GRPOTrainer of ms-swift with its own checkpointing, and its template's hook in front of the model."""

    trains = False
    """Whether its train() runs, which registers the hook itself."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        """The trainer."""
        as_loaded(model, reference)
        trainer = super().trainer(model, peft, folder, words, reference)
        config: Any = model.config
        template = use_template(trainer, config.model_type, words)
        if not self.trains:
            register(trainer, template, self.job.checkpointing == "full")
        return trainer

    def batch(self) -> dict[str, Any]:
        """A micro-batch of a generation."""
        rows = self.rows(self.job.micro_batch_size)
        shape = rows["input_ids"].shape
        rows |= positions(shape)
        self.seen = tuple(rows)
        return {**super().batch(), **rows}

    def inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch as the trainer keeps it."""
        rest = {name: one for name, one in batch.items() if name not in self.seen or name in of_model(self.job)}
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
