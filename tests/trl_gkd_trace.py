"""TRL's GKDTrainer on fake tensors: a student and its teacher, on samples that they get."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests import trl_trace
from tests.trl_trace import Setup, TrlRun, ones
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec

BETAS = {"jsd": 0.5, "forward_kl": 0.0, "reverse_kl": 1.0}
"""TRL's beta by the divergence."""


class Gkd(Setup):
    """GKDTrainer of data sets alone: whose completions they are does not matter to the step on them."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        """The trainer."""
        from datasets import Dataset
        from trl.experimental.gkd import GKDConfig, GKDTrainer

        arguments = GKDConfig(**self.arguments(folder), lmbda=0.0, beta=BETAS[self.job.divergence])
        row = {"messages": [{"role": "user", "content": "w3"}, {"role": "assistant", "content": "w4"}]}
        return GKDTrainer(
            model,
            reference,
            args=arguments,
            train_dataset=Dataset.from_list([row]),
            processing_class=words,
            peft_config=peft,
        )

    def batch(self) -> dict[str, torch.Tensor]:
        """A micro-batch, as DataCollatorForChatML makes it."""
        rows, length, prompt = self.job.micro_batch_size, self.job.sequence_length, max(self.prompt, 1)
        made = {name: ones(rows, length) for name in ("input_ids", "attention_mask", "labels")}
        return made | {name: ones(rows, prompt) for name in ("prompts", "prompt_attention_mask")}


trl_trace.SETUPS |= {"gkd": Gkd}


@contextmanager
def nothing_is_emptied() -> Iterator[None]:
    """Inside, TRL empties no cache: there is none on this machine."""
    with patch("trl.experimental.gkd.gkd_trainer.empty_cache", lambda: None):
        yield


class GkdRun(TrlRun):
    """A run of a student with its teacher."""

    without_gradients = "teacher"

    def __init__(self, spec: ModelSpec, teacher: ModelSpec, job: Job, gpu: Gpu, **options: Any) -> None:
        super().__init__(spec, job, gpu, "gkd", job.prompt_length or 0, **options)
        self.teacher = teacher

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        with nothing_is_emptied():
            return super().go()

    def _reference(self) -> nn.Module:
        kept = {"checkpointing": "none", "keeps_outputs": True}  # nobody switches its use_cache off
        job = self.job.model_copy(update={"dtype": self.job.dtype_of_teacher, **kept})
        return self._model_of(self.teacher, job)
