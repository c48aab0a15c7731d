"""The samples that TRL's PPO generates for its log after an update: a batch of prompts, which the reward model scores.

(trl 1.12, experimental/ppo/ppo_trainer.py: generate_completions with ``sampling=True``, one batch of the evaluation's
data; ms-swift 4.6 inherits it.) The scores of every token of that batch are held while it is scored, beside those of
the training's own generation.
"""

from __future__ import annotations

from typing import Any

from vramplan.analytic.architectures.lookup import architecture_of
from vramplan.analytic.tasks.fused_head import scored_tokens
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.estimate import Estimate
from vramplan.units import DTYPE_BYTES


def fields_of_samples(size: int) -> dict[str, Any]:
    """Fields of a job that generates and scores `size` completions, all at a time."""
    return {"micro_batch_size": size, "gradient_accumulation_steps": 1, "rollout_batch_size": size}


def samples_bytes(spec: ModelSpec, training: Estimate, at_size: Estimate) -> int:
    """Allocated peak of generating and scoring samples for the log, in bytes.

    `at_size` is the estimate of the training's job with :func:`fields_of_samples`, whose phases hold the scores of as
    many completions before, where there are those of the training.
    """
    samples, others = _score_bytes(spec, at_size.job), _score_bytes(spec, training.job)
    return max(at_size.phases["generation"] - samples, at_size.phases["reward"]) + others


def _score_bytes(spec: ModelSpec, job: Job) -> int:
    """Bytes of the fp32 scores of every token of all completions of a generation."""
    model = architecture_of(spec)
    vocabulary = model.architecture.shape(model.config).vocabulary
    rows = job.micro_batch_size * job.gradient_accumulation_steps
    return DTYPE_BYTES["fp32"] * rows * scored_tokens(job) * vocabulary
