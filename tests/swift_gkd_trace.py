"""ms-swift's GKDTrainer on fake tensors: a student and its teacher, on samples that they get."""

from __future__ import annotations

import json
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


def zero3_offload() -> dict[str, Any]:
    """What ``teacher_deepspeed zero3_offload`` names (swift/config)."""
    from importlib.resources import files

    found: dict[str, Any] = json.loads((files("swift") / "config" / "zero3_offload.json").read_text())
    return found


LOG_PROBS, WORDS = "teacher_topk_logprobs", "teacher_topk_indices"


class Finite:
    """What ``torch.isinf`` gives of log-probabilities all of which came."""

    def all(self, dim: int) -> Finite:
        """Of each token."""
        return self

    def any(self) -> bool:
        """Of any of them."""
        return False


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
        if reference is not None:
            reference.requires_grad_(False)
        template = _template(words, "causal_lm", self.job.batches == "packed")
        template.truncation_strategy = "delete"
        more: dict[str, Any] = {}
        if self.options.get("teacher_deepspeed") == "zero3_offload":
            more = {"teacher_deepspeed_config": zero3_offload()}
        if reference is None:
            more = {"teacher_model_server": "http://127.0.0.1:1", "gkd_logits_topk": self.job.teacher_logits}
        arguments = GKDConfig(**{name: one for name, one in own.items() if name in GKDConfig.__dataclass_fields__})
        with (
            patch.object(GKDTrainer, "prepare_rollout", lambda self: None),
            patch("swift.rlhf_trainers.rollout_mixin.VLLMInferClient", lambda **_: None),
        ):
            return GKDTrainer(
                model=model,
                args=arguments,
                template=template,
                train_dataset=Dataset.from_list([{"input_ids": [3]}]),
                teacher_model=reference,
                **more,
            )

    def batch(self) -> dict[str, Any]:
        """A micro-batch, as the template collates it."""
        rows, length, highest = self.job.micro_batch_size, self.job.sequence_length, self.job.teacher_logits
        names: tuple[str, ...] = ("input_ids", "attention_mask", "labels")
        if self.job.batches == "packed":  # Template.packing_row
            names, rows, length = ("input_ids", "labels", "position_ids"), 1, rows * length
        made = {name: ones(rows, length) for name in names}
        if highest is None:
            return made
        return {**made, LOG_PROBS: torch.zeros(rows, length, highest), WORDS: ones(rows, length, highest)}


class SwiftGkdRun(SwiftRun):
    """A run of a student with its teacher."""

    without_gradients = "teacher"

    def __init__(self, spec: ModelSpec, teacher: ModelSpec | None, job: Job, gpu: Gpu, **options: Any) -> None:
        with patch.dict(SETUPS, {"gkd": SwiftGkd}):
            TrlRun.__init__(self, spec, job, gpu, "gkd", job.prompt_length or 0, **options)
        self.teacher = teacher

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        from swift.rlhf_trainers import GKDTrainer

        def given(self: Any, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
            own = {name: one for name, one in batch.items() if name not in (LOG_PROBS, WORDS)}
            rest = {name: one for name, one in batch.items() if name not in own}
            source = SimpleNamespace(data_source="dataset", **rest)
            return {"model_inputs": own, "teacher_model_inputs": dict(own), "gkd_batch": source}

        with patch.object(GKDTrainer, "_prepare_inputs", given), patch("torch.isinf", lambda _: Finite()):
            return super().go()

    def _reference(self) -> nn.Module | None:
        if self.teacher is None:
            return None
        job = self.job.model_copy(update={"dtype": self.job.dtype_of_teacher, "checkpointing": "none"})
        return self._model_of(self.teacher, job)
