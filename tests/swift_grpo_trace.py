"""ms-swift's own GRPOTrainer on fake tensors: what it scores, and trains on, of completions that it gets."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests import trl_trace
from tests.scoring_run import ScoringRun
from tests.swift_trace import REFERENCE, _called_by_swift, _template, as_swift_loads
from tests.trl_trace import Answers, Setup, ones
from vramplan.inputs.job import Job


def of_model(job: Job) -> tuple[str, str]:
    """What of a batch the model gets; the rest is a GRPOBatch."""
    return "input_ids", "position_ids" if job.batches == "packed" else "attention_mask"


def kept_tokens(job: Job) -> int:
    """Tokens with logits: of each row, or of the only one, those behind the (first) prompt."""
    rows = job.micro_batch_size if job.batches == "packed" else 1
    return rows * job.sequence_length - (job.prompt_length or 0)


class LengthAnswers(Answers):
    """What ms-swift reads of a row to take it apart again (utils.py: pad_logps_back_to_batch)."""

    def __init__(self, job: Job, owner: str, answer_tokens: int) -> None:
        super().__init__(job, owner, answer_tokens)
        rows, length = job.micro_batch_size, job.sequence_length
        lengths = [length - (job.prompt_length or 0), *(length for _ in range(rows - 1))]
        ends = list(itertools.accumulate(lengths))
        read = lengths
        if rows <= 2:
            read = [number for one in zip([0, *ends], ends, lengths, strict=False) for number in one]
        self.lengths = itertools.cycle(read)

    def answer(self, func: Any, args: Any, module: Any) -> Any:
        reads = func is torch.ops.aten._local_scalar_dense.default and args[0].dtype is torch.int64
        if reads and trl_trace._called_by_trl("pad_logps_back_to_batch"):
            return next(self.lengths)
        return super().answer(func, args, module)


def _no_engine(*_: Any, **__: Any) -> None:
    """Nothing generates."""


def _has_rewards(trainer: Any, *_: Any) -> None:
    trainer.reward_funcs = [None]


class SwiftGrpo(Setup):
    """GRPOTrainer of ms-swift, whose template and engine of generation are stand-ins."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        from datasets import Dataset
        from swift.rlhf_trainers.arguments import GRPOConfig
        from swift.rlhf_trainers.grpo_trainer import GRPOTrainer

        model = as_swift_loads(model, reference, peft, self.job)
        own = self.arguments(folder) | {
            "check_model": False,
            "remove_unused_columns": False,
            "tuner_type": "full" if peft is None else "lora",
            "num_generations": self.job.num_generations,
            "max_completion_length": self.job.sequence_length - (self.job.prompt_length or 0),
            "beta": 0.04 if self.job.reference else 0.0,
            "temperature": 0.9,
            "scale_rewards": "group",
            "kl_in_reward": False,
            "loss_type": "grpo",
            **self.options,
        }
        template = _template(words, "causal_lm", self.job.batches == "packed")
        template.truncation_strategy = "left"
        older = find_spec("swift.rl_core") is None
        nothing = {
            f"swift.rlhf_trainers.{'grpo_trainer' if older else 'rollout_mixin'}.TransformersEngine": _no_engine,
            f"{GRPOTrainer.__module__}.GRPOTrainer._prepare_rewards": _has_rewards,
        }
        with ExitStack() as stack:
            for name, stand_in in nothing.items():
                stack.enter_context(patch(name, stand_in))
            return GRPOTrainer(
                model=model,
                ref_model=reference,
                args=GRPOConfig(**own),
                template=template,
                train_dataset=Dataset.from_list([{"input_ids": [3]}]),
            )

    def with_adapters(self, model: nn.Module, peft: Any) -> tuple[Any, Any]:
        return model, peft

    def batch(self) -> dict[str, Any]:
        """A micro-batch of a generation."""
        rows, length = self.job.micro_batch_size, self.job.sequence_length
        new = kept_tokens(self.job)
        shape = (1, rows * length) if self.job.batches == "packed" else (rows, length)
        made = {name: ones(*shape) for name in of_model(self.job)}
        made |= {
            "completion_mask": torch.ones(rows, new, dtype=torch.bool),
            "truncated_mask": torch.zeros(rows, dtype=torch.bool),
            "seq_lengths": ones(rows),
            "old_per_token_logps": torch.zeros(rows, new),
            "advantages": torch.zeros(rows, new),
            "num_items_in_batch": torch.ones(()),
        }
        return made | ({"ref_per_token_logps": torch.zeros(rows, new)} if self.job.reference else {})

    def inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch as the trainer keeps it: before 4.4 in one dictionary."""
        if find_spec("swift.rl_core") is None:
            return {**batch, "logits_to_keep": kept_tokens(self.job)}
        from swift.rl_core.data import GRPOBatch

        names = of_model(self.job)
        rest = {name: one for name, one in batch.items() if name not in names}
        return {
            "model_inputs": {name: batch[name] for name in names},
            "grpo_batch": GRPOBatch(logits_to_keep=kept_tokens(self.job), **rest),
        }


class SwiftGrpoRun(ScoringRun):
    """A run in which completions are scored in front of each optimizer step, by the model and by its reference."""

    def __init__(self, *args: Any, **options: Any) -> None:
        with patch.dict(trl_trace.SETUPS, {"grpo": SwiftGrpo}), patch.object(trl_trace, "Answers", LengthAnswers):
            super().__init__(*args, **options)

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        from swift.rlhf_trainers.grpo_trainer import GRPOTrainer

        inputs = self.setup.inputs
        with _called_by_swift(), patch.object(GRPOTrainer, "_prepare_inputs", lambda self, batch: inputs(batch)):
            return super().go()

    def _step(self, trainer: Any, model: nn.Module, optimizer: Any) -> None:
        from swift.trainers import disable_gradient_checkpointing

        trainer.model.train()
        self.scores = True
        self.tracker.enter("scoring")
        batch = self.setup.inputs({name: self._on_device(tensor) for name, tensor in self.setup.batch().items()})
        models = [trainer.model] + ([trainer.ref_model] if trainer.ref_model is not None else [])
        sets = ["default", REFERENCE] if self.job.reference == "frozen_adapters" else []
        with torch.no_grad():
            for one, adapters in itertools.zip_longest(models * max(1, len(sets)), sets):
                if adapters:
                    one.set_adapter(adapters)
                with disable_gradient_checkpointing(one, trainer.args.gradient_checkpointing_kwargs):
                    parts = (dict(batch["model_inputs"]), batch["grpo_batch"]) if "grpo_batch" in batch else (batch,)
                    found = trainer._get_per_token_logps_and_entropies(one, *parts)
        del found, batch, parts
        if sets:
            trainer.model.set_adapter("default")
        self.scores = False
        super()._step(trainer, model, optimizer)
