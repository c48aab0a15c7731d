"""(model, job, card) to an :class:`~vramplan.memory.estimate.Estimate`, without torch, in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from vramplan.analytic.architectures.lookup import architecture_of, is_described
from vramplan.analytic.architectures.towers import VisionInput
from vramplan.analytic.layer_folding import HEAD, TAIL, FoldPlan, fold
from vramplan.analytic.layers.context import LayerKind
from vramplan.analytic.layers.moe_peft import FORMER, PATTERNS
from vramplan.analytic.played_step import Step, no_cycle_collection
from vramplan.analytic.run_timeline import SimulatedRun
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.strategies.device_map_layers import contents, fullest, spread_out
from vramplan.analytic.supported import (
    check_adapters,
    check_mixture,
    check_model,
    check_modelled,
    check_saved,
    mixture_notes,
)
from vramplan.analytic.train_step import declare
from vramplan.analytic.varied_lengths import varied
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import IMAGE_PROCESSORS, processed_image
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import MODEL_INPUTS, describe
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.validation import are_linear, check_job
from vramplan.memory.estimate import Estimate, PartialEstimate, SimulatedStep
from vramplan.memory.optimizers import check_weights, optimizer_seconds
from vramplan.memory.overheads import outside_bytes
from vramplan.memory.roofline import flops, seconds
from vramplan.memory.summarize import summarize
from vramplan.memory.timeline import Timeline

VERSIONS = "torch 2.13, transformers 5.23, peft 0.21"
"""What the blocks mirror."""
VERSIONS_LOOPED = "torch 2.13, transformers 5.23 with the mixtures of 4.57, peft 0.21"


def prepare(spec: ModelSpec, job: Job, card: Gpu) -> tuple[StepSpec, FoldPlan, list[str]]:
    """Check everything and choose what to play.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    check_job(job, card)
    check_modelled(job)
    notes = check_model(spec, architecture_of(spec), job)
    setting, plan = lay_out(spec, job, card.runs_flash)
    if job.strategy == "device_map":
        setting, plan = spread_out(setting, plan, card, spec.name)
    return setting, plan, notes


def lay_out(spec: ModelSpec, job: Job, flash_fits: bool) -> tuple[StepSpec, FoldPlan]:
    """What to play of a model, and what that stands for.

    Raises:
        VramplanError: where no block describes it, or an image cannot be.
    """
    family, config, sight, whole = architecture_of(spec)
    if family.model is not None:
        folds = tuple(fold(kinds, stack) for stack, kinds in enumerate(family.model.stacks(config)))
        inputs, played = tuple(MODEL_INPUTS[spec.model_type].inputs(config, job)), tuple(one.simulated for one in folds)
        return StepSpec(family, config, job, (), flash_fits, stacks=played, inputs=inputs), FoldPlan(folds)
    deep = sight.deep(whole) if sight else 0
    kinds = family.kinds(config)
    text = fold(kinds, head=max(HEAD, deep + 1), tail=tail_of(kinds))
    layers: tuple[LayerKind, ...] = text.simulated  # type: ignore[assignment]
    linear_experts = are_linear(spec, job)
    peft_expert_pattern = "" if linear_experts else PATTERNS.get(spec.model_type, "")
    if sight is None:
        step_spec = StepSpec(family, config, job, layers, flash_fits, None, peft_expert_pattern, linear_experts)
        return step_spec, FoldPlan((text,))
    picture = processed_image(spec, job)
    assert picture is not None
    tower = fold(sight.kinds(whole.part("vision_config")), stack=1, tail=max(1, -sight.chosen(whole)))
    seen = VisionInput(sight, whole, tower.simulated, picture)
    setting = StepSpec(family, config, job, layers, flash_fits, seen, peft_expert_pattern, linear_experts)
    return setting, FoldPlan((tower, text))


def tail_of(kinds: list[LayerKind]) -> int:
    """Last layers that stand for themselves: from the last that attends to images, where gradients of these begin."""
    crossing = [number for number, kind in enumerate(kinds) if kind.crosses]
    return len(kinds) - crossing[-1] if crossing else TAIL


def estimate(spec: ModelSpec, job: Job, card: Gpu) -> Estimate:
    """What the job needs on the card.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    return begin(spec, job, card).complete()


def begin(spec: ModelSpec, job: Job, card: Gpu) -> PartialEstimate:
    """Play the step; the allocator's replay and all the rest wait until they are asked for.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    with no_cycle_collection():
        setting, plan, notes = prepare(spec, job, card)
        step = Step(setting, plan, card)
        run = SimulatedRun(step)
        pattern = setting.peft_expert_pattern
        check_mixture(job, step.routers, card.runs_flash, pattern)
        check_adapters(job, step.widths, linear_names(step, pattern), pattern)
        check_saved(job, step.widths, saved_names(step))
        check_weights(job, ((weight.name, weight.shape) for weight in step.trained))
        notes += mixture_notes(spec, job, step.routers, pattern)
        timelines = run.timelines if job.lengths is None else _varied(spec, job, card, run)
        peaks = {one: max(timeline.live_bytes(with_kernels=False)) for one, timeline in timelines.items()}
    lower_bound_bytes = max(peaks.values()) + outside_bytes(job, card)

    def complete() -> Estimate:
        with no_cycle_collection():
            found = {}
            for one, peak in peaks.items():
                played = whole(run, (*notes, *count_notes(spec, step.num_parameters)), one)
                played = replace(played, timeline=timelines[one], inputs_text=describe(spec, job))
                found[one] = summarize(played, spec.name, job, card, peak)
            return found[0] if setting.spread_over is None else fullest(found, contents(setting, plan))

    return PartialEstimate(
        lower_bound_bytes, complete, timelines[0] if len(peaks) == 1 else None, lambda on: step_seconds(step, on)
    )


def _varied(spec: ModelSpec, job: Job, card: Gpu, run: SimulatedRun) -> dict[int, Timeline]:
    """Each card's timeline where lengths vary."""

    @cache
    def at(length: int) -> dict[int, Timeline]:
        if length == job.sequence_length:
            return run.timelines
        setting, plan, _ = prepare(spec, job.model_copy(update={"sequence_length": length}), card)
        return SimulatedRun(Step(setting, plan, card)).timelines

    def on(one: int) -> Callable[[int], Timeline]:
        return lambda length: at(length)[one]

    return {one: varied(on(one), job) for one in run.timelines}


def whole(run: SimulatedRun, notes: tuple[str, ...], card: int = 0) -> SimulatedStep:
    """Everything that a simulated run tells of a card."""
    step = run.step
    first, _ = step.kernels()
    micro_step_seconds, update_seconds = step_seconds(step, step.card)
    return SimulatedStep(
        by="analytic",
        timeline=run.timelines[card],
        evaluation_bytes=run.evaluation_bytes(card),
        num_parameters=step.num_parameters,
        num_trainable_parameters=sum(weight.num_elements for weight in step.trained),
        micro_step_seconds=micro_step_seconds,
        optimizer_seconds=update_seconds,
        flops_per_micro_step=flops(first),
        versions=VERSIONS_LOOPED if step.setting.linear_experts else VERSIONS,
        notes=notes,
        picture=None if step.setting.seen is None else step.setting.seen.picture,
        num_vision_parameters=step.num_vision_parameters,
    )


def step_seconds(step: Step, card: Gpu) -> tuple[float, float]:
    """Roofline time of a micro-step and of the optimizer's step on a card; a further micro-step where there is one."""
    first, further = step.kernels()
    return seconds(further or first, card), optimizer_seconds(step.job.optimizer, step.trained, card)


def count_notes(spec: ModelSpec, counted: int) -> list[str]:
    """Says so where the published files hold another number of elements than the blocks count."""
    if spec.num_parameters == counted or spec.stored_parameters in (None, counted):
        return []
    return [
        f"the published files hold {spec.stored_parameters:,} elements, the blocks count {counted:,} parameters:"
        f" buffers, a stored copy of a tied head, or a variant that the {spec.model_type} block does not know"
    ]


def listed_layers(spec: ModelSpec) -> tuple[str, ...] | None:
    """Linear layers by name, for trainers that list them for PEFT; None where that is all-linear to PEFT anyway.

    It is not for a mixture whose experts PEFT adapts by all-linear: those are no linear layers any more, since
    transformers 5.
    """
    if spec.model_type not in PATTERNS or not is_described(spec) or spec.model_type in IMAGE_PROCESSORS:
        return None
    family = architecture_of(spec).family
    job = Job(method="full").model_copy(update={"attention": family.attention[0]})
    net = declare(lay_out(spec, job, True)[0])
    names = {
        one.name.removesuffix(".weight")
        for one in net.tape.parameters.values()
        if one.layer is not None and len(one.shape) == 2 and one.name.endswith(".weight")
    }
    return tuple(sorted({name.rpartition(".")[2] for name in names - net.routers}))


def linear_names(step: Step, pattern: str) -> list[str]:
    """Names of the linear layers that may get an adapter, and those that PEFT's `pattern` takes for experts."""
    return sorted(
        {
            one.parameter.name.removesuffix(".weight")
            for one in step.placed
            if len(one.parameter.shape) == 2 and one.layer is not None and not one.parameter.is_adapter
        }
        - step.routers
        | set(FORMER[pattern])
        | {"lm_head"}
    )


def saved_names(step: Step) -> set[str]:
    """Names of the modules that may train in a copy: those whose own weights are not quantized."""
    kept = (one.parameter for one in step.placed if not one.parameter.is_adapter and not one.parameter.stored)
    tied = {"lm_head"}  # an output head always is one, tied or not
    return {parameter.name.rpartition(".")[0] for parameter in kept} | tied
