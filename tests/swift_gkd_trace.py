"""ms-swift's GKDTrainer on fake tensors: a student and its teacher, on samples that they get."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests.swift_trace import SwiftRun, _template, as_swift_loads
from tests.trl_gkd_trace import BETAS
from tests.trl_trace import SETUPS, Setup, TrlRun, ones
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec


class SwiftGkd(Setup):
    """GKDTrainer, whose template and generations are stand-ins."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        """The trainer."""
        from datasets import Dataset
        from swift.rlhf_trainers import GKDTrainer
        from swift.rlhf_trainers.arguments import GKDConfig

        model = as_swift_loads(model, reference, peft, self.job)
        own = self.arguments(folder) | {"check_model": False, "remove_unused_columns": False, "tuner_type": "lora"}
        own |= {"lmbda": 0.0, "beta": BETAS[self.job.divergence], "sft_alpha": 0.1 * self.job.adds_cross_entropy}
        reference.requires_grad_(False)
        template = _template(words, "causal_lm", self.job.batches == "packed")
        template.truncation_strategy = "delete"
        arguments = GKDConfig(**{name: one for name, one in own.items() if name in GKDConfig.__dataclass_fields__})
        with patch.object(GKDTrainer, "prepare_rollout", lambda self: None):
            return GKDTrainer(
                model=model,
                args=arguments,
                template=template,
                train_dataset=Dataset.from_list([{"input_ids": [3]}]),
                teacher_model=reference,
            )

    def batch(self) -> dict[str, Any]:
        """A micro-batch, as the template collates it."""
        rows, length = self.job.micro_batch_size, self.job.sequence_length
        if self.job.batches == "packed":  # Template.packing_row
            return {name: ones(1, rows * length) for name in ("input_ids", "labels", "position_ids")}
        return {name: ones(rows, length) for name in ("input_ids", "attention_mask", "labels")}


class SwiftGkdRun(SwiftRun):
    """A run of a student with its teacher."""

    without_gradients = "teacher"

    def __init__(self, spec: ModelSpec, teacher: ModelSpec, job: Job, gpu: Gpu, **options: Any) -> None:
        with patch.dict(SETUPS, {"gkd": SwiftGkd}):
            TrlRun.__init__(self, spec, job, gpu, "gkd", job.prompt_length or 0, **options)
        self.teacher = teacher

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        from swift.rlhf_trainers import GKDTrainer

        def given(self: Any, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
            source = SimpleNamespace(data_source="dataset")
            return {"model_inputs": dict(batch), "teacher_model_inputs": dict(batch), "gkd_batch": source}

        with patch.object(GKDTrainer, "_prepare_inputs", given):
            return super().go()

    def _reference(self) -> nn.Module:
        job = self.job.model_copy(update={"dtype": self.job.dtype_of_teacher, "checkpointing": "none"})
        return self._model_of(self.teacher, job)
