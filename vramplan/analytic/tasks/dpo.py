"""DPO and its kin, as TRL's DPOTrainer computes them (trl 1.16, trainer/dpo_trainer.py: _compute_loss).

Chosen and rejected answers are one batch. Whatever the loss type, the rest of the loss works on numbers per sample.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.fused_head import answer_labels, fused_forward, of_samples
from vramplan.analytic.tasks.reference import as_reference, reference_of

METRICS = ("entropy", "mean_logits", "is_top1")
"""What the fused head computes for the metrics."""


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``DPOTrainer.compute_loss``."""
    tape, job = net.tape, setting.job
    labels = answer_labels(net, batch)
    outputs = fused_forward(net, setting, phase, batch, labels, METRICS)
    tape.module = "loss"
    per_token = outputs[0]
    sums = ops.total(ops.sliced(per_token, per_token.shape))
    kind = reference_of(job)
    if kind in ("adapters_off", "model"):
        with as_reference(net, phase) as own:
            reference = fused_forward(net, setting, own, batch, labels, METRICS if kind == "adapters_off" else ())
    tape.module = "loss"
    loss = of_samples(sums)
    counted = tape.empty(per_token.shape, "fp32", "entropy of the answers")
    del counted
    return loss
