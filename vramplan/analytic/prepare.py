"""Checks a job and lays its model out: which layers to simulate, and which they stand for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from vramplan.analytic.architectures.image_features import TOWER_STACK
from vramplan.analytic.architectures.lookup import ModelArchitecture, architecture_of
from vramplan.analytic.architectures.vision_tower import MERGES, VisionInput
from vramplan.analytic.layer_folding import HEAD, TAIL, Fold, FoldPlan, fold, whole
from vramplan.analytic.layers.context import LayerKind
from vramplan.analytic.layers.liger_models import liger_layers, liger_model
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.supported import check_model, check_modelled, check_second_model
from vramplan.errors import ConfigError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.image_task_rules import runs_swift
from vramplan.inputs.images import ProcessedImage, processed_image
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import ROLLOUTS
from vramplan.inputs.model_inputs import inputs_of
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.task_rules import SCORING
from vramplan.inputs.teachers import teacher_of
from vramplan.inputs.validation import are_linear, check_job
from vramplan.memory.fused_attention import FusedAttention, fused_attention, widest_head


def prepare(spec: ModelSpec, job: Job, card: Gpu, trains: bool = True) -> tuple[StepSpec, FoldPlan, list[str]]:
    """Check a job on a model; returns the layers to simulate, the layers that they stand for, and notes.

    `trains` is whether weights train, or only run beside another model.

    Raises:
        VramplanError: for a job that cannot run or is not modelled.
    """
    check_job(job, card, trains)
    if not trains:
        check_second_model(spec, job, card)
    check_modelled(job)
    notes = check_model(spec, architecture_of(spec), job)
    setting, plan = lay_out(spec, job, fused_kernels(spec, card), card.multiprocessors)
    teacher = teacher_of(job)
    if teacher is not None:
        from vramplan.analytic.teacher import check_teacher, with_teacher

        notes += [f"teacher: {note}" for note in check_teacher(spec, teacher, job, card) if note not in notes]
        setting, own = with_teacher(setting, teacher, fused_kernels(teacher, card))
        plan = FoldPlan((*plan.stacks, own))
    if job.value_model is not None:
        from vramplan.analytic.value_model import check_values, value_model_of, with_values

        values = value_model_of(job)
        assert values is not None
        own_notes = check_values(spec, values, job, card)
        notes += [f"value model {values.name}: {note}" for note in own_notes if note not in notes]
        setting, own = with_values(setting, values, fused_kernels(values, card))
        plan = FoldPlan((*plan.stacks, own))
    if job.strategy == "device_map":
        from vramplan.analytic.strategies.device_map_layers import spread_out

        setting, plan = spread_out(setting, plan, card, spec.name)
    return setting, plan, notes


def fused_kernels(spec: ModelSpec, gpu: Gpu) -> FusedAttention:
    """The fused kernels that SDPA may choose for a model on a GPU."""
    return fused_attention(gpu).for_heads(widest_head(architecture_of(spec).config))


def lay_out(
    spec: ModelSpec, job: Job, fused: FusedAttention, multiprocessors: int | None = None
) -> tuple[StepSpec, FoldPlan]:
    """The layers of a model to simulate, and the layers that they stand for.

    Raises:
        VramplanError: for an architecture that is not supported, or an image that is invalid.
    """
    model = architecture_of(spec)
    folds = folds_of(model)
    if job.offloads_activations:  # each layer frees what one of several layers before it saved
        folds = tuple(whole(kinds, number) for number, kinds in enumerate(model.stacks()))
    vision = vision_of(spec, job, model)
    replaced = liger_model(spec.model_type, model.config.text("model_type", spec.model_type))
    step = StepSpec(
        model.architecture,
        model.config,
        job if vision is None else with_images_in_prompt(job, vision.image),
        tuple(one.simulated for one in folds),
        fused,
        vision,
        inputs_of(spec.model_type, job.task, spec.name),
        are_linear(spec, job),
        liger_layers(replaced, job.fused_kernels, multiprocessors),
    )
    return step, FoldPlan(tuple(sorted(folds, key=lambda one: -one.base)) if model.tower is not None else folds)


def vision_of(spec: ModelSpec, job: Job, model: ModelArchitecture) -> VisionInput | None:
    """The vision tower of a model and one processed image of the job; None if the model has none.

    Raises:
        ConfigError: for an image that the processor refuses.
    """
    if model.tower is None:
        return None
    image = processed_image(spec, job)
    assert image is not None
    return VisionInput(model.tower, model.whole, image)


def with_images_in_prompt(job: Job, image: ProcessedImage) -> Job:
    """The job of a preference trainer or of GRPO, whose prompt has all tokens of images: none of them is scored.

    Raises:
        ConfigError: for a prompt with less tokens than its images.
    """
    if job.runs_verl and job.joins_samples:  # a row of several prompts
        return job
    if job.loss == "logits_to_keep" and job.task in ("dpo", "kto"):  # left out by ms-swift under transformers 4
        return job.model_copy(update={"prompt_length": None})
    tokens = job.pictures * image.all_tokens
    if job.task not in (*SCORING, *ROLLOUTS) or not tokens or (runs_swift(job) and job.prompt_length == 1):
        return job  # its prompts of several lengths are counted from their first token on
    if job.prompt_length is None:
        return job.model_copy(update={"prompt_length": min(tokens, job.sequence_length - 1)})
    if job.prompt_length < tokens:
        raise ConfigError(
            f"{setting('prompt_length', job.prompt_length)}: the images of a sample make {tokens:,} tokens alone (as"
            f" {image.description}), which are the prompt's: raise {setting('prompt_length')}, what"
            f" {setting('sequence_length')} leaves beside a completion, or give smaller images by"
            f" {setting('image_size', 'WIDTHxHEIGHT')}"
        )
    return job


def folds_of(model: ModelArchitecture) -> tuple[Fold, ...]:
    """How each stack of layers is folded.

    Layers stand for themselves alone if image features are added or patches merged behind them, or if they are the
    tower's from the first that the language model takes on.
    """
    tower, whole, stacks = model.tower, model.whole, model.stacks()
    if tower is None:
        return tuple(fold(kinds, number, tail=tail_of(kinds)) for number, kinds in enumerate(stacks))
    text = fold(stacks[0], head=max(HEAD, tower.deep(whole) + 1), tail=tail_of(stacks[0]))
    kinds = stacks[TOWER_STACK]
    deep = None
    if not tower.across:
        deep = [number for number, kind in enumerate(kinds) if (tower.between and kind) or kind == MERGES]
    return text, fold(kinds, TOWER_STACK, tail=max([1, *(-index for index in tower.chosen(whole))]), alone=deep)


def tail_of(kinds: Sequence[Hashable]) -> int:
    """Last layers that stand for themselves: from the last that attends to images, where gradients of these begin."""
    crossing = [number for number, kind in enumerate(kinds) if isinstance(kind, LayerKind) and kind.crosses]
    return len(kinds) - crossing[-1] if crossing else TAIL
