"""TRL's trainers of vision-language models on fake tensors: batches have images, as processors make them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import nn

from tests.trl_trace import Dpo, Kto, Setup, TrlRun
from vramplan.inputs.images import IMAGE_PROCESSORS
from vramplan.inputs.job_values import ROLLOUTS
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


class Seeing(TrlRun):
    """A tracked run of a trainer whose batches have images."""

    setups: ClassVar[dict[str, type[Setup]]] = {"dpo": SeeingDpo, "kto": SeeingKto}

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


def run_of(task: str | None) -> type[Seeing]:
    """The run of a task."""
    if task not in ROLLOUTS:
        return Seeing
    from tests.trl_seeing_grpo_trace import SeeingGrpoRun

    return SeeingGrpoRun
