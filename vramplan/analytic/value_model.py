"""PPO's value model: a second model that trains on the same GPU, with layers and weights of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from vramplan.analytic.architectures.forward_pass import DevicePlacement
from vramplan.analytic.architectures.lookup import architecture_of
from vramplan.analytic.layer_folding import STACK, Fold, fold
from vramplan.analytic.layers.liger_models import LigerLayers
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.supported import check_model, check_second_model
from vramplan.analytic.teacher import TEACHER_STACK
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.load import load_other_model, names_setting
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.ppo_rules import adapts_values
from vramplan.inputs.task_rules import NO_REWARD
from vramplan.memory.fused_attention import FusedAttention

if TYPE_CHECKING:
    from vramplan.inputs.job_values import Attention


def value_model_of(job: Job) -> ModelSpec | None:
    """The job's value model; None for a job without one.

    Raises:
        VramplanError: if there is no such model.
    """
    return None if job.value_model is None else load_other_model("value_model", job.value_model)


def value_job(values: ModelSpec, job: Job) -> Job:
    """The job as the value model runs it: whole, or, in ms-swift, with adapters and a copy of its head.

    TRL leaves its ``use_cache`` on; ms-swift switches it off (4.6, pipelines/train/rlhf.py: _prepare_single_model).
    """
    possible = architecture_of(values).architecture.attention
    changes = {
        "method": job.method if adapts_values(job) else "full",
        "dtype": job.dtype_of_values,
        "quantize": "none",
        "modules_to_save": None,
        "attention": job.attention if job.attention in possible else cast("Attention", possible[0]),
        "fused_kernels": (),
        "keeps_outputs": job.ppo_trainer == "trl",
    }
    return job.model_copy(update=changes)


PADDING = 0.01
"""Share of rows by which models of one tokenizer differ: Qwen2.5 has 151,665 tokens, its models have 151,936 rows
up to 3B and 152,064 from 7B on (their config.json: vocab_size)."""


def check_ids(rows: int, policy_rows: int) -> list[str]:
    """Check that a model with `rows` tokens takes the ids of a policy with `policy_rows`; a note if a few less.

    Raises:
        ConfigError: naming both numbers.
    """
    if rows < (1 - PADDING) * policy_rows:
        raise ConfigError(
            f"has {rows:,} tokens, and the policy {policy_rows:,}, whose ids it gets; give one with the same tokenizer"
        )
    if rows >= policy_rows:
        return []
    return [f"has {rows:,} tokens, and the policy {policy_rows:,}: taken for padding behind one tokenizer's tokens"]


def check_values(spec: ModelSpec, values: ModelSpec, job: Job, gpu: Gpu) -> list[str]:
    """Check a value model with its policy; returns notes.

    Raises:
        VramplanError: for one that cannot take the policy's ids, or one that is not supported.
    """
    with names_setting("value_model", values.name):
        model = architecture_of(values)
        if model.tower is not None or model.architecture.decoder is None:
            raise UnsupportedError("value models other than language models of text alone are not modelled; give one")
        if values.model_type in NO_REWARD:
            raise ConfigError(
                f"transformers 5.23 has no {values.model_type} model with one number for a token"
                " (ForSequenceClassification)"
            )
        own = value_job(values, job)
        check_second_model(values, own, gpu)
        notes = check_model(values, model, own)
        policy = architecture_of(spec)
        rows, policy_rows = (each.architecture.shape(each.config).vocabulary for each in (model, policy))
        return [*notes, *check_ids(rows, policy_rows)]


def with_values(step: StepSpec, values: ModelSpec, fused: FusedAttention) -> tuple[StepSpec, Fold]:
    """A step with its value model, and how that model's layers are folded; `fused`: kernels for its heads."""
    model = architecture_of(values)
    (kinds,) = model.stacks()
    folded = fold(kinds, TEACHER_STACK)
    first = TEACHER_STACK * STACK
    own = StepSpec(
        model.architecture,
        model.config,
        value_job(values, step.job),
        (folded.simulated,),
        fused,
        liger=LigerLayers(),
        device_map=DevicePlacement(tuple((first + number, 0) for number in range(len(folded.simulated)))),
    )
    return replace(step, values=own), folded
