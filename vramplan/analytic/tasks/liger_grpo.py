"""GRPO by Liger's fused loss, as TRL computes it from 1.0 to 1.12 with ``use_liger_kernel``, and ms-swift 4.6.

(trainer/grpo_trainer.py: compute_liger_loss.) Completions are scored without it, by whole logits. The model below the
head is called by itself, so that accelerate's autocast does not reach it.
"""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import language_model
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.liger_completions import completion_loss
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.fused_head import scored_tokens


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``GRPOTrainer.compute_liger_loss``."""
    tape, job, config = net.tape, setting.job, setting.config
    rows, length = batch.inputs["input_ids"].shape
    tape.module = "inputs"
    names = {"input_ids": "prompts and completions", "attention_mask": "mask of both"}
    joined = batch
    if job.loss == "liger":  # ms-swift's batch holds them in one piece
        inputs = {name: tape.empty((rows, length), "int64", what) for name, what in names.items()}
        joined = batch._replace(inputs={**batch.inputs, **inputs})
    states = language_model(forward_pass(net, setting, phase, joined), config)
    tape.module = "loss"
    width = states.shape[-1]
    hidden = ops.sliced(ops.sliced(states, (rows, length - 1, width)), (rows, scored_tokens(job), width))
    del states
    vocabulary = setting.architecture.shape(config).vocabulary
    weight = net.head_weight(vocabulary, width, setting.architecture.is_tied(config))
    loss = completion_loss(hidden, weight, scaled=job.gradient_accumulation_steps > 1)
    del joined
    return loss
