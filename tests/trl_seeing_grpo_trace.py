"""TRL's GRPOTrainer and RLOOTrainer of vision-language models on fake tensors: prompts have images."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from tests.trl_grpo_trace import Grpo, GrpoRun, Rloo
from tests.trl_seeing_trace import Images, Seeing
from tests.trl_trace import Setup


class Completed(Images):
    """Completions of prompts with images."""

    def batch(self) -> dict[str, Any]:
        """A micro-batch of a generation."""
        prompt, made, rows = self.job.prompt_length or 0, super().batch(), self.rows(self.job.micro_batch_size)
        for kind, whole in (("ids", rows.pop("input_ids")), ("mask", rows.pop("attention_mask"))):
            made |= {f"prompt_{kind}": whole[:, :prompt].clone(), f"completion_{kind}": whole[:, prompt:].clone()}
        return {**made, **rows, **self.counts(rows.get("pixel_values"))}

    def counts(self, pixels: torch.Tensor | None) -> dict[str, list[int]]:
        """Numbers of images, and of tiles if these are the rows of the pixels (InternVL)."""
        if pixels is None or self.images is None:
            return {}
        counts = {"num_images": [self.job.images] * self.job.micro_batch_size}
        if pixels.dim() == 4 and pixels.size(0) != sum(counts["num_images"]):
            counts["num_tiles"] = [self.job.images * self.images.processed.tiles] * self.job.micro_batch_size
        return counts


class SeeingGrpo(Completed, Grpo):
    """GRPOTrainer."""


class SeeingRloo(Completed, Rloo):
    """RLOOTrainer."""


class SeeingGrpoRun(Seeing, GrpoRun):
    """A tracked run in which completions are scored in front of each optimizer step."""

    setups: ClassVar[dict[str, type[Setup]]] = {"grpo": SeeingGrpo, "rloo": SeeingRloo}

    def _generated(self) -> dict[str, Any]:
        rows = self.job.micro_batch_size * self.job.gradient_accumulation_steps
        whole = type(self.setup)(self.job.model_copy(update={"micro_batch_size": rows}), 0, {})
        whole.images = self.setup.images
        return whole.batch()

    def _seen(self, batch: dict[str, Any]) -> dict[str, Any]:
        texts = ("prompt", "completion", "advantages", "old_", "ref_", "num_items")
        return {name: value for name, value in batch.items() if not name.startswith(texts)}
