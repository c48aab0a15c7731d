"""The changes that would make a configuration fit, in the words of its own framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from vramplan.errors import VramplanError
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers.python_words import read_keys
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import EXPANDABLE_SEGMENTS
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.estimate import Estimate
from vramplan.planner.estimate_cache import EstimateCache
from vramplan.planner.levers import Lever, Levers, helpful_effects, memory_levers
from vramplan.planner.monotone_search import LENGTH_STEP, largest
from vramplan.planner.search_result import LeverEffect, Search

MOST_TRIES = 32

RunEstimate = Callable[[dict[str, Any]], Estimate]
"""The estimate of the job with these fields changed."""


def reserve_headroom(gpu: Gpu, estimate: Estimate, spare_bytes: int) -> Gpu:
    """The GPU with less memory, so that what fits it, margin included, leaves `spare_bytes` free of the real one."""
    if spare_bytes <= estimate.margin_bytes:
        return gpu
    capacity = estimate.capacity_bytes
    usable = (capacity - spare_bytes) * capacity // (capacity - estimate.margin_bytes)
    return gpu.model_copy(update={"held_bytes": gpu.held_bytes + capacity - usable})


def levers_of(config: ParsedConfig) -> Levers:
    """The changes that save memory, without those that the configuration's framework has no settings for."""

    def levers(spec: ModelSpec, job: Job, gpu: Gpu, need_bytes: int) -> list[Lever]:
        every = memory_levers(spec, job, gpu, need_bytes)
        possible = [lever for lever in every if lever.card is not None or can_say(config, lever)]
        return [_as_read(config, job, lever) if lever.about == "quantize" else lever for lever in possible]

    return levers


def _as_read(config: ParsedConfig, job: Job, lever: Lever) -> Lever:
    """A quantization with what the framework does beside it: trainers prepare such a model, or cast its adapters.

    Both are decided by the framework's version, which only its reader knows.
    """
    own_method = config.job.get("method", job.method)
    beside = {} if job.method == own_method else {"method": job.method}
    for cast in ({}, {"dtype": "bf16"}):  # a reader may refuse to quantize fp32 weights
        with suppress(VramplanError):
            before, after = (
                Job.model_validate(_job_with(config, {**beside, **cast, **update}), strict=False)
                for update in ({}, lever.first)
            )
            names = after.model_fields_set | before.model_fields_set
            fields = {name: getattr(after, name) for name in names if getattr(after, name) != getattr(before, name)}
            return replace(lever, update={**lever.update, **fields, **lever.update})
    return lever


def _job_with(config: ParsedConfig, update: Mapping[str, Any]) -> dict[str, Any]:
    words = config.words(update)
    return config.job_with(read_keys(words) if config.spelling == "python" else words)


def can_say(config: ParsedConfig, lever: Lever) -> bool:
    """Whether the configuration's framework has a setting for what a change is about."""
    is_said = "offload" not in lever.update or config.words({"offload": lever.update["offload"]})
    return bool(is_said and _settings(config, lever.first))


def config_levers(
    config: ParsedConfig, search: Search, run_estimate: RunEstimate, image_tokens: int, spare_bytes: int
) -> list[LeverEffect]:
    """Each change that the framework has settings for; of lengths the largest that fits, above `image_tokens`.

    If more than the margin has to stay free, each is estimated again on the whole GPU, on which PyTorch caches more.
    """
    effects = []
    smallest = search.smallest.job
    needs_more_room = spare_bytes > search.smallest.margin_bytes
    batch = {name: getattr(smallest, name) for name in ("micro_batch_size", "gradient_accumulation_steps")}
    own = {name: config.job.get(name, value) for name, value in batch.items()}
    for effect in search.advice:
        update, need_bytes, fits = dict(effect.update), effect.device_total_bytes, effect.fits
        strategy_settings = config.strategy_settings.get(update.get("strategy", ""), {})
        if not update and needs_more_room:  # another GPU's share is not known here
            continue
        if "sequence_length" in update:
            beside = {**batch, **strategy_settings, **update}
            longest = _longest_that_fits(
                smallest.sequence_length, partial(_changed, run_estimate, beside), image_tokens, spare_bytes
            )
            if longest is not None:
                update["sequence_length"] = longest.job.sequence_length
                need_bytes, fits = longest.device_total_bytes, True
        elif found := _most_scored(search.job, update, (own, batch), run_estimate, spare_bytes):
            update, need_bytes, fits = {"verl": found.job.verl}, found.device_total_bytes, True
            effect = replace(effect, micro_batch_size=found.micro_batch_size)
        elif update and (strategy_settings or (fits and needs_more_room)):
            estimate = run_estimate({**batch, **strategy_settings, **update})
            need_bytes, fits = estimate.device_total_bytes, _leaves_free(estimate, spare_bytes)
        if update and search.job.runs_verl and effect.micro_batch_size != own["micro_batch_size"]:
            estimate = run_estimate({**own, **update})  # vLLM's share often decides, and not the batch
            if _leaves_free(estimate, spare_bytes):
                effect = replace(effect, micro_batch_size=own["micro_batch_size"])
                need_bytes, fits = estimate.device_total_bytes, True
        settings = {name: value for name, value in update.items() if getattr(search.job, name) != value}
        effects.append(
            replace(
                effect,
                settings=_settings(config, settings),
                batch=tuple(config.say(_batch_beside(config, search, effect))),
                fits=fits,
                device_total_bytes=need_bytes,
                update=update,
                card="" if update else f"{effect.change.partition(' ')[2]} ({effect.why})",
            )
        )
    return effects


def _changed(run_estimate: RunEstimate, beside: dict[str, Any], changed: dict[str, Any]) -> Estimate:
    return run_estimate(beside | changed)


def _most_scored(
    job: Job,
    update: Mapping[str, Any],
    batches: Sequence[Mapping[str, int]],
    run_estimate: RunEstimate,
    spare_bytes: int,
) -> Estimate | None:
    """Of verl's fewer samples for each scoring the most that fit, with the first of the batches that fits at all."""
    fewer = job.verl.fewer_scored(job.sequence_length) if job.runs_verl and not job.joins_samples else []
    if update.get("verl") not in fewer:
        return None
    for batch in batches:
        for verl in fewer:
            estimate = run_estimate({**batch, "verl": verl})
            if _leaves_free(estimate, spare_bytes):
                return estimate
    return None


def free_changes(
    config: ParsedConfig, estimates: EstimateCache, training: Estimate, spare_bytes: int
) -> list[LeverEffect]:
    """The free changes that make a training fit with its own micro-batch, the one that needs least first."""
    pair = training.micro_batch_size, training.gradient_accumulation_steps
    levers = memory_levers(estimates.spec, estimates.job, estimates.gpu, training.device_total_bytes)
    effects = [
        replace(effect, settings=_settings(config, effect.update))
        for effect in helpful_effects(estimates, training, levers, next_pair=pair)
        if training.capacity_bytes - effect.device_total_bytes >= spare_bytes
    ]
    return sorted((effect for effect in effects if effect.settings), key=lambda effect: effect.device_total_bytes)


def _settings(config: ParsedConfig, update: Mapping[str, Any]) -> tuple[str, ...]:
    """A change in the framework's words, or as a variable of the environment."""
    variable = [f"{EXPANDABLE_SEGMENTS} in the environment"] if update.get("expandable_segments") else []
    return (*config.say(update), *variable)


def _batch_beside(config: ParsedConfig, search: Search, effect: LeverEffect) -> dict[str, int]:
    """The batch that the figures are for, if the configuration has another."""
    if effect.micro_batch_size == config.job["micro_batch_size"]:
        return {}
    per_gpu = search.global_batch_size // search.job.data_parallel
    return {
        "micro_batch_size": effect.micro_batch_size,
        "gradient_accumulation_steps": max(1, per_gpu // effect.micro_batch_size),
    }


def _leaves_free(estimate: Estimate, spare_bytes: int) -> bool:
    return estimate.fits and estimate.headroom_bytes >= spare_bytes


def _longest_that_fits(length: int, run_estimate: RunEstimate, image_tokens: int, spare_bytes: int) -> Estimate | None:
    """The estimate at the most tokens below `length` that fit; None if none do."""
    first = image_tokens // LENGTH_STEP
    estimates: dict[int, Estimate] = {}

    def fits(steps: int) -> bool:
        try:
            estimates[steps] = run_estimate({"sequence_length": (first + steps) * LENGTH_STEP})
        except VramplanError:
            return False
        return _leaves_free(estimates[steps], spare_bytes)

    most_steps = max(1, (length - 1) // LENGTH_STEP - first)
    steps, _ = largest(max(1, most_steps // 2), fits, MOST_TRIES, most_steps)
    return estimates[steps] if steps else None
