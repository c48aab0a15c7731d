"""The teacher of a distillation: a second model on the same GPU, with layers and weights of its own."""

from __future__ import annotations

from dataclasses import replace

from vramplan.analytic.architectures.forward_pass import DevicePlacement
from vramplan.analytic.architectures.lookup import architecture_of
from vramplan.analytic.layer_folding import STACK, Fold, fold
from vramplan.analytic.layers.liger_models import LigerLayers
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.supported import check_model, check_second_model
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.load import names_setting
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.fused_attention import FusedAttention

TEACHER_STACK = 2
"""Number of the teacher's stack of layers, behind those that the student may have."""


def teacher_job(job: Job) -> Job:
    """The job as the teacher runs it: whole, without adapters, in evaluation mode.

    TRL does not switch its ``use_cache`` off, as the Trainer does for the student: each forward makes keys and values.
    ms-swift does (4.6, pipelines/train/rlhf.py), and so does TRL's DistillationTrainer for each forward.
    """
    changes = {
        "method": "full",
        "dtype": job.dtype_of_teacher,
        "quantize": "none",
        "prepare_for_kbit_training": False,
        "modules_to_save": None,
        "fp32_norms": False,
        "checkpointing": "none",
        "reentrant": False,
        "fused_kernels": (),
        "keeps_outputs": job.loss not in ("logits_to_keep", "chunked"),
    }
    return job.model_copy(update=changes)


def check_teacher(spec: ModelSpec, teacher: ModelSpec, job: Job, gpu: Gpu) -> list[str]:
    """Check a teacher with its student; returns notes.

    Raises:
        VramplanError: for a teacher of another vocabulary, which TRL refuses, or one that is not supported; ms-swift's
            may have more words than the student.
    """
    with names_setting("teacher", teacher.name):
        model = architecture_of(teacher)
        if model.tower is not None:
            raise UnsupportedError("a vision-language model as teacher is not modelled yet; give one of text alone")
        check_second_model(teacher, teacher_job(job), gpu)
        notes = check_model(teacher, model, teacher_job(job))
        student = architecture_of(spec)
        own, other = (one.architecture.shape(one.config).vocabulary for one in (student, model))
        if own != other and not (job.loss == "logits_to_keep" and own < other):  # which ms-swift pads
            if job.loss == "logits_to_keep":
                raise UnsupportedError(
                    f"the student model has vocab_size {own} but the teacher model has vocab_size {other}: ms-swift"
                    " pads the teacher's logits, which is not modelled; a teacher with as many words or more is"
                )
            raise ConfigError(
                f"the student model has vocab_size {own} but the teacher model has vocab_size {other}: GKD compares the"
                " teacher's full next-token distribution, and TRL requires a teacher with the same vocab_size"
            )
    return notes


def with_teacher(setting: StepSpec, teacher: ModelSpec, fused: FusedAttention) -> tuple[StepSpec, Fold]:
    """A step with its teacher, and how the teacher's layers are folded; `fused`: kernels for the teacher's heads."""
    model = architecture_of(teacher)
    (kinds,) = model.stacks()
    folded = fold(kinds, TEACHER_STACK)
    first = TEACHER_STACK * STACK
    own = StepSpec(
        model.architecture,
        model.config,
        teacher_job(setting.job),
        (folded.simulated,),
        fused,
        liger=LigerLayers(),
        device_map=DevicePlacement(tuple((first + number, 0) for number in range(len(folded.simulated)))),
    )
    return replace(setting, teacher=own), folded
