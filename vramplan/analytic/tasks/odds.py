"""ORPO, CPO and SimPO: preference losses without a reference (trl 1.16, experimental/orpo and experimental/cpo).

All logits are held; the cross-entropy of the chosen answers is added, but not in SimPO (cpo_alpha 0). Since trl 1.14 a
Triton kernel makes the log-probabilities, and axolotl brings its own.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch
from vramplan.analytic.layers.log_probs_of_loss import log_probs_of
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.fused_head import of_samples
from vramplan.analytic.tasks.whole_logits import cross_entropy_of_first, logits_of


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``ORPOTrainer.compute_loss`` and ``CPOTrainer.compute_loss``: concatenated_forward, then numbers per sample."""
    tape, job = net.tape, setting.job
    tape.module = "inputs"
    chosen = batch.inputs["chosen_input_ids"].shape
    both = (2 * chosen[0], chosen[1])
    joined = {
        name: tape.empty(both, "int64", f"{name.replace('_', ' ')} of both answers")
        for name in ("input_ids", "attention_mask", "labels")
    }
    logits = logits_of(net, setting, phase, batch._replace(inputs={**batch.inputs, **joined}))
    tape.module = "loss"
    labels = tape.empty(both, "int64", "labels of both answers")
    if job.task == "orpo":  # the cross-entropy is that of prompt and answer
        padding = tape.empty(both, "bool", "tokens that are no padding")
        labels = tape.empty(both, "int64", "labels without padding")
        del padding
    nll = None if job.task == "simpo" else _of_chosen(logits)
    length, vocabulary = both[1] - 1, logits.shape[-1]
    index = tape.empty((both[0], length), "int64", "shifted labels")
    scored = tape.empty((both[0], length), "bool", "tokens of answers")
    index = tape.empty((both[0], length), "int64", "shifted labels")
    shifted = ops.sliced(logits, (both[0], length, vocabulary))
    log_probs = log_probs_of(job.loss, shifted, index, False).view(both[0], length)
    masked = ops.mul(log_probs, scored, "log-probabilities of answers")
    del index, scored, log_probs, shifted
    loss = of_samples(ops.total(masked))
    del masked
    if nll is not None:
        loss = ops.add(nll, loss)
    del joined, labels, logits
    return loss


def _of_chosen(logits: Tensor) -> Tensor:
    """The mean cross-entropy of the first half of the samples, without the last token of each."""
    rows, length = logits.shape[0] // 2, logits.shape[1] - 1
    labels = logits.tape.empty((rows, length), "int64", "shifted labels of chosen answers")
    return cross_entropy_of_first(logits, rows, length, labels)
