"""TRL's trainers of vision-language models on fake tensors: batches have images, as processors make them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import nn

from tests.trl_grpo_trace import Grpo, GrpoRun, Rloo
from tests.trl_trace import Dpo, Kto, Setup, TrlRun
from vramplan.inputs.images import IMAGE_PROCESSORS
from vramplan.torch_backend.model.adapters import excluded_modules, freeze
from vramplan.torch_backend.model.batches import image_batch
from vramplan.torch_backend.model.build import from_config
from vramplan.torch_backend.model.subject import ImageInputs


class Images(Setup):
    """A trainer whose batches have images."""

    images: ImageInputs | None = None

    def rows(self, number: int) -> dict[str, torch.Tensor]:
        """So many texts with images; integers keep their values, which models read."""
        shape = (number, self.job.sequence_length)
        if self.images is None:
            return {name: torch.ones(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
        return image_batch(self.images, shape, "cpu")


class SeeingDpo(Images, Dpo):
    """DataCollatorForVisionPreference: the images of a pair come twice."""

    def batch(self) -> dict[str, torch.Tensor]:
        """A micro-batch."""
        rows = 2 * self.job.micro_batch_size
        return self.rows(rows) | {"completion_mask": without_values(rows, self.job.sequence_length)}


class SeeingKto(Images, Kto):
    """DataCollatorForVisionUnpairedPreference: answers of other prompts see the same images."""

    def batch(self) -> dict[str, torch.Tensor]:
        """A micro-batch."""
        shape = self.job.micro_batch_size, self.job.sequence_length
        batch = self.rows(shape[0])
        batch |= {f"KL_{name}": one.clone() for name, one in batch.items() if one.shape == shape}
        batch |= {f"{kl}completion_mask": without_values(*shape) for kl in ("", "KL_")}
        return {**batch, "label": torch.empty(shape[0], dtype=torch.bool)}


def without_values(*shape: int) -> torch.Tensor:
    """Integers without values."""
    return torch.empty(shape, dtype=torch.int64)


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


class Seeing(TrlRun):
    """A tracked run of a trainer whose batches have images."""

    setups: ClassVar[dict[str, type[Setup]]] = {
        "dpo": SeeingDpo,
        "kto": SeeingKto,
        "grpo": SeeingGrpo,
        "rloo": SeeingRloo,
    }

    setup: Images

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fakes.values = True
        self.outer = nullcontext()  # around the tracker it would make tensors of numbers without values
        self.processor = IMAGE_PROCESSORS[self.spec.model_type]

    def _model(self) -> nn.Module:
        subject = from_config(self.spec, self.job, "meta", False, nullcontext)
        self.setup.images = subject.images
        freeze(subject.module, self.job, self.processor)
        return subject.module

    def _adapters(self) -> Any:
        adapters = super()._adapters()
        if adapters is not None:
            adapters.exclude_modules = excluded_modules(self.job, self.processor)
        return adapters

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class SeeingGrpoRun(Seeing, GrpoRun):
    """The same of completions, which are scored in front of each optimizer step."""

    def _generated(self) -> dict[str, Any]:
        rows = self.job.micro_batch_size * self.job.gradient_accumulation_steps
        whole = type(self.setup)(self.job.model_copy(update={"micro_batch_size": rows}), 0, {})
        whole.images = self.setup.images
        return whole.batch()

    def _seen(self, batch: dict[str, Any]) -> dict[str, Any]:
        texts = ("prompt", "completion", "advantages", "old_", "ref_", "num_items")
        return {name: value for name, value in batch.items() if not name.startswith(texts)}


def run_of(task: str | None) -> type[Seeing]:
    """The run of a task."""
    return SeeingGrpoRun if task in ("grpo", "rloo") else Seeing
