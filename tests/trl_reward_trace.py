"""TRL's GRPOTrainer and RLOOTrainer on fake tensors with a reward model, which scores completions from elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests.helpers import spec_of
from tests.trl_grpo_trace import GrpoRun
from vramplan.analytic.rollout.phases import generates_each_micro_step, steps_per_generation
from vramplan.inputs.job import Job
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.model.build import from_config
from vramplan.torch_backend.model.materialize import place


def reward_model(job: Job) -> nn.Module:
    """The reward model of a job, on the meta device."""
    from transformers import AutoModelForSequenceClassification

    assert job.reward_model is not None
    config = from_config(spec_of(job.reward_model), job, "meta", False, nullcontext).module.config
    config.num_labels = 1
    dtype = DTYPES[job.reward_dtype or job.dtype]
    with torch.device("meta"):
        made = AutoModelForSequenceClassification.from_config(
            config, attn_implementation=config._attn_implementation, dtype=dtype
        )
    made.config.use_cache = True
    return made.eval()


@contextmanager
def _without_gradients(mode: bool = True) -> Iterator[None]:
    """In place of inference_mode, in which fake tensors do not see which operations a function is made of.

    Autocast keeps no cast weights in it.
    """
    if not mode:
        yield
        return
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    with torch.no_grad(), patch("torch.set_autocast_cache_enabled", lambda _: None):
        yield
    torch.set_autocast_cache_enabled(before)


class RewardedRun(GrpoRun):
    """A run in which a reward model scores all completions of a generation in front of each optimizer step."""

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        self.setup.reward_model = reward_model(self.job)  # type: ignore[attr-defined]
        return super().go()

    def _observe(self, trainer: Any, reference: nn.Module | None) -> None:
        with self.fakes.mode:
            place(self.setup.reward_model, self.tracker)  # type: ignore[attr-defined]
        super()._observe(trainer, reference)

        train, later = trainer.training_step, itertools.cycle((False, True))

        def step(*arguments: Any) -> Any:
            if next(later) and generates_each_micro_step(self.job):
                self._score(trainer)
                self.tracker.enter("forward")
            return train(*arguments)

        if self.job.gradient_accumulation_steps > 1:
            trainer.training_step = step

    def _step(self, trainer: Any, model: nn.Module, optimizer: Any) -> None:
        self._score(trainer)
        super()._step(trainer, model, optimizer)

    def _score(self, trainer: Any) -> None:
        job = self.job
        rows = job.micro_batch_size * steps_per_generation(job)
        self.tracker.enter("reward")
        shape = rows, job.sequence_length

        def tokenize(**_: Any) -> dict[str, torch.Tensor]:
            return {name: torch.empty(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask")}

        trainer.reward_processing_classes = [tokenize]
        texts = [""] * rows
        with patch("torch.inference_mode", _without_gradients):
            found = trainer._calculate_rewards([{}] * rows, texts, texts, [[]] * rows)
        del found
