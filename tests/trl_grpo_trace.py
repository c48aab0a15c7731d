"""TRL's GRPOTrainer and RLOOTrainer on fake tensors: what they score, and train on, of completions that they get."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch
import trl
from torch import nn

from tests import trl_trace
from tests.scoring_run import ScoringRun
from tests.trl_trace import Setup, ones


class Completions(Setup):
    """A trainer of completions from elsewhere."""

    reward_model: nn.Module | None = None

    def trainer_of(
        self, trainer: type, config: type, beta: float, model: nn.Module, peft: Any, folder: str, words: Any
    ) -> Any:
        """The trainer of TRL with its configuration."""
        from datasets import Dataset

        arguments = config(
            **self.arguments(folder),
            num_generations=self.job.num_generations,
            max_completion_length=self.job.sequence_length - (self.job.prompt_length or 0),
            beta=beta,
        )
        return trainer(
            model,
            self.reward_model or (lambda **_: [0.0]),
            reward_processing_classes=words if self.reward_model is not None else None,
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": "w3"}]),
            processing_class=words,
            peft_config=peft,
        )


class Grpo(Completions):
    """GRPOTrainer."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        """The trainer."""
        beta = 0.04 if self.job.reference else 0.0
        return self.trainer_of(trl.GRPOTrainer, trl.GRPOConfig, beta, model, peft, folder, words)

    def batch(self) -> dict[str, torch.Tensor]:
        """A micro-batch of a generation."""
        rows, prompt = self.job.micro_batch_size, self.job.prompt_length or 0
        new = self.job.sequence_length - prompt
        made = {
            "prompt_ids": ones(rows, prompt),
            "prompt_mask": ones(rows, prompt),
            "completion_ids": ones(rows, new),
            "completion_mask": ones(rows, new),
            "advantages": torch.zeros(rows),
            "num_items_in_batch": torch.ones(()),
        }
        return made | ({"ref_per_token_logps": torch.zeros(rows, new)} if self.job.reference else {})


class Rloo(Completions):
    """RLOOTrainer."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        """The trainer."""
        beta = 0.0 if self.job.reference == "none" else 0.05
        with patch(f"{trl.RLOOTrainer.__module__}.create_model_from_path", lambda *_, **__: reference):
            return self.trainer_of(trl.RLOOTrainer, trl.RLOOConfig, beta, model, peft, folder, words)

    def batch(self) -> dict[str, torch.Tensor]:
        """A micro-batch of a generation."""
        rows, prompt = self.job.micro_batch_size, self.job.prompt_length or 0
        sizes = {"prompt": prompt, "completion": self.job.sequence_length - prompt}
        made = {f"{name}_{kind}": ones(rows, size) for name, size in sizes.items() for kind in ("ids", "mask")}
        return made | {name: torch.zeros(rows) for name in ("old_logps", "advantages")}


trl_trace.SETUPS |= {"grpo": Grpo, "rloo": Rloo}
if not hasattr(trl.trainer.utils, "_use_triton"):  # before 1.15 no head is fused
    trl_trace.triton_kernels = nullcontext


class GrpoRun(ScoringRun):
    """A run in which completions are scored in front of each optimizer step, if there is a reference."""

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        trainer = trl.RLOOTrainer if self.job.task == "rloo" else trl.GRPOTrainer
        with patch.object(trainer, "_prepare_inputs", lambda self, batch: batch):
            return super().go()

    def _generated(self) -> dict[str, Any]:
        """A generation, which is scored a micro-batch at a time: of more than one, texts are too small to matter."""
        return self.setup.batch()

    def _seen(self, batch: dict[str, Any]) -> dict[str, Any]:
        """What a batch has of images."""
        return {}

    def _step(self, trainer: Any, model: nn.Module, optimizer: Any) -> None:
        from trl.models.utils import disable_gradient_checkpointing

        if self.job.reference or self.job.task == "rloo":
            self.scores = True
            self.tracker.enter("scoring")
            batch = {name: self._on_device(tensor) for name, tensor in self._generated().items()}
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
            settings = trainer.args.gradient_checkpointing_kwargs
            of_reference = nullcontext()
            if self.job.reference == "frozen_adapters":
                of_reference = trl.trainer.utils.use_adapter(trainer.model, "ref")
            with torch.no_grad(), disable_gradient_checkpointing(trainer.model, settings), of_reference:
                found = trainer._get_per_token_logps_and_entropies(
                    trainer.model,
                    ids,
                    mask,
                    batch["completion_ids"].size(1),
                    batch_size=self.job.micro_batch_size,
                    **self._seen(batch),
                )
            del found, batch, ids, mask
            self.scores = False
        super()._step(trainer, model, optimizer)
