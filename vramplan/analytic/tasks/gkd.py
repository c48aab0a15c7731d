"""Distillation as TRL's GKDTrainer computes it: whole logits of the student and of its teacher, and their divergence.

(trl 1.16, experimental/gkd/gkd_trainer.py: compute_loss.) Up to 1.6 only logits of completions are compared: those
behind the longest prompt of the batch.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch
from vramplan.analytic.layers.divergence import divergence
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks import gkd_chunks, gkd_tiles
from vramplan.analytic.tasks.fused_head import scored_tokens
from vramplan.analytic.tasks.reference import without_gradients
from vramplan.analytic.tasks.teacher_outputs import teacher_outputs
from vramplan.analytic.tasks.whole_logits import logits_of


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``GKDTrainer.compute_loss``: the outputs of both models live until the loss is returned."""
    if setting.job.loss == "chunked":
        return gkd_tiles.compute_loss(net, setting, phase, batch)
    if setting.job.loss == "logits_to_keep":
        return gkd_chunks.compute_loss(net, setting, phase, batch)
    tape = net.tape
    student = logits_of(net, setting, phase, batch)
    with without_gradients(net, phase, name="teacher") as taught:
        teacher, cache = teacher_outputs(net, setting, taught, batch)
    tape.module = "loss"
    rows, length, vocabulary = student.shape
    scored = scored_tokens(setting.job)
    compared = scored if setting.job.loss == "sliced" else length - 1
    own, other = (ops.sliced(one, (rows, compared, vocabulary)) for one in (student, teacher))
    loss = divergence(own, other, setting.job.divergence, scored)
    tape.empty_cache()
    del own, other, teacher, cache
    return loss
