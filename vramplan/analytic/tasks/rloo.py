"""RLOO as TRL's RLOOTrainer trains on completions: GRPO's log-probabilities, and ratios of one number for a completion.

(trl 1.12 and 1.16, trainer/rloo_trainer.py: _compute_loss.) The divergence from the reference is a part of the reward.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.fused_head import of_samples
from vramplan.analytic.tasks.grpo import token_log_probs


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``RLOOTrainer.compute_loss`` on a micro-batch of prompts with their completions."""
    kept: dict[str, Tensor] = {}
    log_probs = token_log_probs(net, setting, phase, batch, kept)
    net.tape.module = "loss"
    mask = net.tape.empty(log_probs.shape, "int64", "mask of the completions")
    loss = of_samples(ops.total(ops.mul(log_probs, mask, "log-probabilities of the completions")))
    kept.clear()
    return loss
