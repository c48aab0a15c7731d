"""The forward of a teacher, on the tape of its student."""

from __future__ import annotations

from dataclasses import replace

from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.whole_logits import logits_of


def teacher_outputs(
    net: Modules, setting: StepSpec, phase: str, batch: Batch, kept: int | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Logits of the teacher, of the last `kept` tokens of each row if given, and its keys and values."""
    assert setting.teacher is not None
    # ms-swift freezes it (4.6, pipelines/train/rlhf.py); of weights that TRL leaves as they are, autocast caches casts
    training = replace(setting.teacher.training(), full=setting.job.loss != "logits_to_keep")
    with net.tape.second_model():
        teacher = Modules(net.tape, training, setting.teacher.liger)
        return logits_of(teacher, setting.teacher, phase, batch, kept), teacher.cache
