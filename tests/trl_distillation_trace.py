"""TRL's DistillationTrainer on fake tensors: a student and its teacher, on completions that they get (trl 1.16)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch
import trl
import trl.kernels.chunked_divergence as kernels
from torch import nn
from trl.trainer import distillation_trainer

from tests.trl_gkd_trace import BETAS, GkdRun
from tests.trl_trace import Setup, _Kernel, ones


class Distillation(Setup):
    """DistillationTrainer of completions from elsewhere."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        """The trainer."""
        from datasets import Dataset

        job = self.job
        arguments = trl.DistillationConfig(
            **{name: value for name, value in self.arguments(folder).items() if name != "max_length"},
            max_completion_length=job.sequence_length - max(job.prompt_length or 0, 1),
            beta=BETAS[job.divergence],
        )
        return trl.DistillationTrainer(
            model,
            reference,
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": "w3"}]),
            processing_class=words,
            peft_config=peft,
        )

    def batch(self) -> dict[str, torch.Tensor]:
        """A micro-batch of a generation."""
        rows, prompt = self.job.micro_batch_size, max(self.job.prompt_length or 0, 1)
        sizes = {"prompt": prompt, "completion": self.job.sequence_length - prompt}
        made = {f"{name}_{kind}": ones(rows, size) for name, size in sizes.items() for kind in ("ids", "mask")}
        return made | {"num_items_in_batch": torch.ones(())}


class DistillationRun(GkdRun):
    """A run of a student with its teacher, whose logits are compared in tiles."""

    setups: Mapping[str, type[Setup]] = MappingProxyType({"gkd": Distillation})

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        stub = _Kernel()
        with (
            patch.object(trl.DistillationTrainer, "_prepare_inputs", lambda self, batch: batch),
            patch.object(distillation_trainer, "_use_triton", lambda device: True),
            patch.multiple(kernels, _stats_kernel=stub, _jsd_kernel=stub, _backward_kernel=stub, create=True),
            patch.object(kernels, "_use_triton", lambda device: True),
            patch.object(kernels, "_addmm_fp32", lambda acc, a, b: None),
            patch.object(kernels, "_project", _projected),
        ):
            return super().go()


def _projected(tile: Any, hidden: Any, weight: Any, bias: Any, start: int, end: int, dtype: torch.dtype) -> None:
    """The product goes into the tile that is given; a weight in another dtype is cast first."""
    cast = weight[start:end].to(dtype)
    del cast
