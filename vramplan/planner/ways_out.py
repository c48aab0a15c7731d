"""What makes a configuration fit that does not, at the same global batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vramplan.errors import VramplanError
from vramplan.inputs.images import IMAGE_PROCESSORS, processed_image
from vramplan.memory.calibration import with_margin
from vramplan.memory.estimate import Estimate
from vramplan.planner.config_levers import MOST_TRIES, config_levers, free_changes, levers_of, reserve_headroom
from vramplan.planner.estimate import estimator_for
from vramplan.planner.estimate_cache import EstimateCache
from vramplan.planner.mini_batches import smaller_mini_batch
from vramplan.planner.monotone_search import bisect_largest, largest
from vramplan.planner.read_job import ReadJob
from vramplan.planner.search_result import LeverEffect, Plan, Search
from vramplan.planner.suggest import suggest
from vramplan.planner.verdict import Verdict
from vramplan.units import divisors

BATCH = ("micro_batch_size", "gradient_accumulation_steps")
TAKES_ALL_ROOM = ("sequence_length", "verl")
"""Fields of changes that are as small as they can be with the smallest micro-batch: a larger one has no room."""


def with_ways_out(read: ReadJob, verdict: Verdict) -> Verdict:
    """The verdict with another evaluation batch, another micro-batch, or changes that make it fit.

    Raises:
        VramplanError: for what is not modelled.
    """
    verdict = _with_evaluation_batch(read, verdict)
    if verdict.trains and verdict.eval_batch_size:
        return verdict
    config, training, spare_bytes = read.config, verdict.estimate, verdict.spare_bytes
    search = suggest(
        read.spec,
        reserve_headroom(read.gpu, training, spare_bytes),
        training.job.global_batch_size,
        advice=levers_of(config),
        confidence=read.confidence,
        progress=read.progress,
        **{name: value for name, value in read.job.items() if name not in BATCH},
    )
    plan = search.recommended
    if plan is not None:  # the same batch may fit: PyTorch gives cached memory back on a fuller GPU
        if plan.micro_batch_size == training.micro_batch_size:
            return replace(verdict, search=search)
        estimator, _, is_analytic = estimator_for(read.spec, read.progress)
        card = with_margin(read.gpu, read.confidence)
        estimates = EstimateCache(read.spec, training.job, card, estimator, several=False)
        free = free_changes(config, estimates, training, spare_bytes) if is_analytic else []
        mini = smaller_mini_batch(config, estimates, training, spare_bytes) if is_analytic else None
        advice = [_with_evaluation(read, verdict, effect) for effect in (*([mini] if mini else []), *free)]
        advice = [effect for effect in advice if effect.fits]
        plan_bytes = _need_of_plan(read, verdict, plan)
        return replace(verdict, search=search, plan=plan, plan_bytes=plan_bytes, advice=tuple(advice))
    shows_images = read.spec.model_type in IMAGE_PROCESSORS
    image = processed_image(read.spec, training.job) if shows_images else None
    image_tokens = training.job.pictures * image.all_tokens if image is not None else 0
    effects = config_levers(config, search, read.estimate, image_tokens, spare_bytes)
    effects = [_with_evaluation(read, verdict, effect) for effect in effects]
    nearest = next((number for number, effect in enumerate(effects) if effect.fits and effect.settings), None)
    if nearest is not None:
        effects[nearest] = _with_larger_batch(read, verdict, search, effects[nearest])
    return replace(verdict, search=search, advice=tuple(effects))


def _room(verdict: Verdict) -> int:
    return verdict.estimate.capacity_bytes - verdict.spare_bytes


def _need_of_plan(read: ReadJob, verdict: Verdict, plan: Plan) -> int:
    """Bytes with another micro-batch, where the evaluation may need more than the training."""
    update = {name: getattr(plan, name) for name in BATCH}
    size = verdict.eval_batch_size or read.config.eval_batch_size
    return max(plan.estimate.device_total_bytes, read.evaluation_bytes(plan.estimate, update, size) or 0)


def _with_evaluation_batch(read: ReadJob, verdict: Verdict) -> Verdict:
    """The verdict with a smaller evaluation batch, if its own does not fit; 0 samples if none does."""
    if (verdict.evaluation_bytes or 0) <= _room(verdict):
        return verdict
    return replace(verdict, eval_batch_size=_smaller_evaluation(read, verdict, verdict.estimate, {}))


def _smaller_evaluation(read: ReadJob, verdict: Verdict, training: Estimate, update: Mapping[str, Any]) -> int:
    """The largest evaluation batch below the configuration's own that fits beside a training; 0 if none does."""
    own = read.config.eval_batch_size or 0

    def fits(size: int) -> bool:
        return (read.evaluation_bytes(training, update, size) or 0) <= _room(verdict)

    return largest(max(1, own // 2), fits, MOST_TRIES, own - 1)[0] if own > 1 else 0


def _update(read: ReadJob, effect: LeverEffect, batch: Mapping[str, int]) -> dict[str, Any]:
    """A change with its batch, and what it implies in the framework."""
    return {**batch, **read.config.strategy_settings.get(effect.update.get("strategy", ""), {}), **effect.update}


def _with_evaluation(read: ReadJob, verdict: Verdict, effect: LeverEffect) -> LeverEffect:
    """The change with an evaluation batch that fits beside it, and what both need, or as one that does not fit."""
    eval_size, job = read.config.eval_batch_size or 0, verdict.estimate.job
    if not (effect.fits and effect.update and eval_size):
        return effect
    steps = max(1, job.gradient_accumulation_steps * job.micro_batch_size // effect.micro_batch_size)
    update = _update(read, effect, {"micro_batch_size": effect.micro_batch_size, "gradient_accumulation_steps": steps})
    changed = read.estimate(update)
    evaluation = read.evaluation_bytes(changed, update, eval_size) or 0
    if evaluation <= _room(verdict):
        return replace(effect, device_total_bytes=max(effect.device_total_bytes, evaluation))
    smaller = _smaller_evaluation(read, verdict, changed, update)
    words = tuple(read.config.say({"eval_batch_size": smaller})) if smaller else ()
    if words:
        evaluation = read.evaluation_bytes(changed, update, smaller) or 0
    return replace(
        effect,
        settings=(*effect.settings, *words),
        fits=bool(words),
        eval_batch_size=smaller,
        device_total_bytes=max(effect.device_total_bytes, evaluation),
    )


def _with_larger_batch(read: ReadJob, verdict: Verdict, search: Search, effect: LeverEffect) -> LeverEffect:
    """The change with the largest micro-batch, up to the configuration's own, with which it fits."""
    own, per_gpu = verdict.estimate.micro_batch_size, search.global_batch_size // search.job.data_parallel
    sizes = [size for size in divisors(per_gpu) if effect.micro_batch_size <= size <= own]
    if any(name in effect.update for name in TAKES_ALL_ROOM) or len(sizes) < 2:
        return effect

    def batch(size: int) -> dict[str, int]:
        return {"micro_batch_size": size, "gradient_accumulation_steps": per_gpu // size}

    def need(size: int) -> int | None:
        """Bytes that it needs with this micro-batch; None if it does not fit."""
        update = _update(read, effect, batch(size))
        try:
            training = read.estimate(update)
            eval_size = effect.eval_batch_size or read.config.eval_batch_size
            evaluation = read.evaluation_bytes(training, update, eval_size) or 0
        except VramplanError:  # a batch that the trainer does not take
            return None
        has_room = training.headroom_bytes >= verdict.spare_bytes and evaluation <= _room(verdict)
        return max(training.device_total_bytes, evaluation) if training.fits and has_room else None

    size = sizes[bisect_largest(0, len(sizes), lambda index: need(sizes[index]) is not None)]
    need_bytes = need(size) if size != effect.micro_batch_size else None
    if need_bytes is None:
        return effect
    words = () if size == own else tuple(read.config.say(batch(size)))
    return replace(effect, micro_batch_size=size, device_total_bytes=need_bytes, batch=words)


__all__ = ["with_ways_out"]
