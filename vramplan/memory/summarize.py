"""Builds an Estimate from a timeline: replays the allocator, finds the peak, lists its terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.platforms import platform_notes
from vramplan.memory import passes
from vramplan.memory.allocator import UNLIMITED, AllocatorSettings
from vramplan.memory.assumptions import assumptions
from vramplan.memory.calibration import margin_bytes, plannable_bytes
from vramplan.memory.estimate import Estimate, SimulatedStep, Term
from vramplan.memory.overheads import outside_terms
from vramplan.memory.replay import Replay, replay
from vramplan.memory.timeline import Timeline
from vramplan.step_time.communication import Communication, communication_seconds, host_optimizer_seconds
from vramplan.step_time.link_rates import fit_in_nodes
from vramplan.step_time.notes import time_notes
from vramplan.step_time.rates import generation_of, is_timed
from vramplan.step_time.step_time import ComputeTime, StepTime

PHASES = (
    "loaded", "generation", "scoring", "reward", "values", "critic", "forward", "reference", "teacher", "backward",
    "optimizer", "eval",
)  # fmt: skip
"""All phases in order. `reference` (the forward of a preference loss's reference), `generation` and `scoring` (of
completions, in reinforcement learning), `values` and `critic` (a critic's forward, its update) are not part of every
job."""

MOSTLY_CACHED = 1.5
"""Reserved bytes over allocated ones from which on a smaller GPU is looked for than an unlimited one."""
LARGER = (1.05, 1.1, 1.25, 1.5, 2, 4)
"""Bytes that such a GPU gives to PyTorch, over the allocated peak."""


def summarize(step: SimulatedStep, model: str, job: Job, gpu: Gpu, peak_tensor_bytes: int | None = None) -> Estimate:
    """The estimate of a simulated step on a GPU."""
    timeline = step.timeline
    if peak_tensor_bytes is None:
        peak_tensor_bytes = step.peak_tensor_bytes
    outside = outside_terms(job, gpu)
    outside_size = sum(term.num_bytes for term in outside)
    limits = (plannable_bytes(job, gpu) - outside_size, gpu.usable_bytes - outside_size)
    run, fits, fits_without_margin = settle(peak_tensor_bytes, limits, replayer(timeline, job))
    peak_index = passes.index_of_highest(run.allocated, timeline.first_tensor, len(run.allocated))
    allocated = run.allocated[peak_index]
    phases = timeline.phase_peaks(run.allocated)
    loaded_end = timeline.marks[1].first_event - 1
    phases["loaded"] = run.allocated[loaded_end]
    phases["eval"] = evaluation_peak(timeline, step.evaluation_bytes)
    return Estimate(
        model=model,
        by=step.by,
        card=gpu.name,
        card_title=gpu.title,
        micro_batch_size=job.micro_batch_size,
        gradient_accumulation_steps=job.gradient_accumulation_steps,
        peak_tensor_bytes=peak_tensor_bytes,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=run.peak_reserved_bytes,
        device_total_bytes=run.peak_reserved_bytes + outside_size,
        capacity_bytes=gpu.usable_bytes,
        margin_bytes=margin_bytes(job, gpu),
        fits=fits,
        fits_without_margin=fits_without_margin,
        phases={name: phases[name] for name in PHASES if name in phases},
        peak_phase=phase_at(timeline, peak_index),
        terms=(*peak_terms(timeline, peak_index, allocated, run.peak_reserved_bytes), *outside),
        num_parameters=step.num_parameters,
        num_trainable_parameters=step.num_trainable_parameters,
        assumptions=assumptions(job, gpu, step),
        model_class=step.model_class,
        notes=(*step.notes, *platform_notes(gpu), *time_notes(job, gpu)),
        image_tokens_per_sample=None if step.picture is None else job.pictures * step.picture.all_tokens,
        num_vision_parameters=step.num_vision_parameters,
        compute=step.compute,
        flops_per_micro_step=step.flops_per_micro_step,
        step_time=step_time(step.compute, step.communication, job, gpu),
        job=job,
        num_cache_releases=run.num_retries,
        timeline=timeline,
    )


def step_time(compute: ComputeTime, communication: Communication, job: Job, gpu: Gpu) -> StepTime | None:
    """The time of an optimizer step; None if a rate of the GPU, or of a link between GPUs, is not known.

    It is not known either where completions are generated before the model trains on them, or where GPUs exchange
    tokens within layers.
    """
    if job.generates_completions or job.verl.sharing or not is_timed(gpu) or not fit_in_nodes(job, gpu):
        return None
    added = communication_seconds(communication, job, gpu, compute.forward_seconds, compute.backward_seconds)
    if added is None:
        return None
    on_host = communication.updated_on_host > 0
    return StepTime(
        micro_step_seconds=compute.micro_step_seconds,
        gradient_accumulation_steps=job.gradient_accumulation_steps,
        communication_seconds=added,
        optimizer_seconds=host_optimizer_seconds(communication, job) if on_host else compute.optimizer_seconds,
        relative_error=generation_of(gpu).relative_error,
    )


def replayer(timeline: Timeline, job: Job) -> Callable[[int], Replay]:
    """A function from the bytes that PyTorch may reserve to the replay of a timeline under the job's settings."""
    kinds, settings = timeline.kinds, AllocatorSettings(expandable_segments=job.expandable_segments)
    return lambda limit: replay(timeline.events, timeline.kind_of, kinds.sizes, limit, settings, streams=kinds.streams)


def settle(
    peak_tensor_bytes: int, limits: tuple[int, int], replayed: Callable[[int], Replay]
) -> tuple[Replay, bool, bool]:
    """(the replay to report, whether it fits with the margin, whether without).

    `limits` are the bytes that PyTorch may reserve with the margin and without.
    """
    verdicts, run = [], None
    for limit in dict.fromkeys(limits):
        run = replayed(limit) if peak_tensor_bytes <= limit else None
        verdicts.append(run is not None and not run.out_of_memory)
        if verdicts[-1]:  # what fits under this limit fits under a larger one
            break
    if run is None or run.out_of_memory:
        run = on_a_larger_gpu(replayed, max(limits))
    return run, verdicts[0], verdicts[-1]


def on_a_larger_gpu(replayed: Callable[[int], Replay], refused_bytes: int) -> Replay:
    """The replay on a GPU large enough: unlimited, or a smaller one if most of what that reserves is cached.

    PyTorch returns cached blocks before it runs out of memory (`CUDACachingAllocator.cpp`: `release_cached_blocks`), so
    that a cache which grows with each generated token does not say how large a GPU has to be.
    """
    run = replayed(UNLIMITED)
    allocated = run.peak_allocated_bytes
    if run.peak_reserved_bytes <= MOSTLY_CACHED * allocated:
        return run
    for share in LARGER:
        limit = int(share * allocated)
        if refused_bytes < limit < run.peak_reserved_bytes:
            smaller = replayed(limit)
            if not smaller.out_of_memory:
                return smaller
    return run


def evaluation_peak(timeline: Timeline, evaluation_bytes: int) -> int:
    """Allocated peak in bytes of an evaluation between two steps: what outlives a step, plus its forward."""
    sizes = timeline.kinds.sizes
    return sum(sizes[kind] for kind in timeline.live_at(len(timeline.events) - 1)) + evaluation_bytes


def phase_at(timeline: Timeline, index: int) -> str:
    """The phase that event `index` belongs to."""
    return [mark.phase for mark in timeline.marks if mark.first_event <= index][-1]


def peak_terms(timeline: Timeline, index: int, allocated_bytes: int, reserved_bytes: int) -> list[Term]:
    """The tensors alive right after event `index`, equal ones in one term, and the rest of what is reserved."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for kind, count in Counter(timeline.live_at(index)).items():
        storage = timeline.kinds[kind]
        group = groups.setdefault((storage.category, storage.label, storage.formula), [0, 0])
        group[0] += storage.rounded_bytes * count
        group[1] += count
    terms = [
        Term(category, label, size, count, formula) for (category, label, formula), (size, count) in groups.items()
    ]
    terms.sort(key=lambda term: -term.num_bytes)
    tensors = sum(term.num_bytes for term in terms)
    terms.append(
        Term(
            "reserved_unused",
            "ends of blocks too small to split off",
            allocated_bytes - tensors,
            formula="large blocks with up to 1 MiB left over are handed out whole",
            source="CUDACachingAllocator.cpp: should_split",
        )
    )
    terms.append(
        Term(
            "reserved_unused",
            "cached by PyTorch's allocator",
            reserved_bytes - allocated_bytes,
            formula="reserved at its peak, less allocated at its peak",
            source="simulation of CUDACachingAllocator.cpp, torch 2.13",
        )
    )
    return terms
