"""(model, job, card) to an :class:`~vramplan.result.Estimate`, without torch, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.allocator import AllocatorSettings, Replay, replay
from vramplan.analytic.families import family_of
from vramplan.analytic.overheads import CUDA_CONTEXT_BYTES, NCCL_BYTES
from vramplan.analytic.play import Setting
from vramplan.analytic.roofline import flops, optimizer_seconds, seconds
from vramplan.analytic.step import Step, no_cycle_collection
from vramplan.analytic.support import check_adapters, check_job, check_model
from vramplan.analytic.unfold import Fold, fold
from vramplan.card import Card
from vramplan.job import Job
from vramplan.result import Begun, Estimate, Term
from vramplan.spec import Config, ModelSpec
from vramplan.timeline import Storage, Timeline


def prepare(spec: ModelSpec, job: Job, card: Card) -> tuple[Setting, Fold, list[str]]:
    """Check everything and choose what to play.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    check_job(job, card)
    family, config = family_of(spec.model_type, spec.name), Config(spec.config, spec.name)
    notes = check_model(spec, config, family, job)
    plan = fold(family.kinds(config))
    flash_fits = card.vendor != "NVIDIA" or card.capability >= (8, 0)
    return Setting(family, config, job, plan.played, flash_fits), plan, notes


def estimate(spec: ModelSpec, job: Job, card: Card) -> Estimate:
    """What the job needs on the card.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    return begin(spec, job, card).finish()


def begin(spec: ModelSpec, job: Job, card: Card) -> Begun:
    """Play the step; the allocator's replay and all the rest wait until they are asked for.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    with no_cycle_collection():
        setting, plan, notes = prepare(spec, job, card)
        step = Step(setting, plan, card)
        check_adapters(job, step.widths, linear_names(step))
        peak_tensor_bytes = max(step.timeline.live_bytes(with_kernels=False))
    least_bytes = peak_tensor_bytes + sum(term.num_bytes for term in outside_terms(job))

    def finish() -> Estimate:
        with no_cycle_collection():
            return _finish(spec, step, notes, peak_tensor_bytes)

    return Begun(least_bytes, finish)


def _finish(spec: ModelSpec, step: Step, notes: list[str], peak_tensor_bytes: int) -> Estimate:
    """Replay the timeline on the card, and say what everything is."""
    job, card, timeline = step.job, step.card, step.timeline
    outside = outside_terms(job)
    available = card.usable_bytes - sum(term.num_bytes for term in outside)
    sizes = timeline.sizes()
    settings = AllocatorSettings(expandable_segments=job.expandable_segments)
    fits, run = peak_tensor_bytes <= available, None
    if fits:
        run = replay(timeline.events, sizes, available, settings)
        fits = not run.out_of_memory
    if run is None or run.out_of_memory:  # what it would need on a card without limit
        run = replay(timeline.events, sizes, settings=settings)
    peak_index = max(range(len(run.allocated)), key=run.allocated.__getitem__)
    phases = timeline.phase_peaks(run.allocated)
    loaded_end = timeline.marks[1].first_event - 1
    phases["loaded"] = run.allocated[loaded_end]
    phases["eval"] = evaluation_peak(step, timeline)
    device_total = run.peak_reserved_bytes + sum(term.num_bytes for term in outside)
    first, further = step.kernels()
    micro_seconds = seconds(further or first, card)
    return Estimate(
        model=spec.name,
        by="analytic",
        card=card.name,
        micro_batch_size=job.micro_batch_size,
        gradient_accumulation_steps=job.gradient_accumulation_steps,
        peak_tensor_bytes=peak_tensor_bytes,
        peak_allocated_bytes=run.peak_allocated_bytes,
        peak_reserved_bytes=run.peak_reserved_bytes,
        device_total_bytes=device_total,
        capacity_bytes=card.usable_bytes,
        fits=fits,
        phases={name: phases[name] for name in ("loaded", "forward", "backward", "optimizer", "eval")},
        peak_phase=phase_at(timeline, peak_index),
        terms=(*peak_terms(timeline.live_at(peak_index), run), *outside),
        num_parameters=step.num_parameters,
        num_trainable_parameters=sum(weight.num_elements for weight in step.trained),
        assumptions=assumptions(job, card),
        notes=(*notes, *count_notes(spec, step.num_parameters)),
        micro_step_seconds=micro_seconds,
        optimizer_seconds=optimizer_seconds(job.optimizer, step.trained, card),
        flops_per_micro_step=flops(first),
        job=job,
    )


def count_notes(spec: ModelSpec, counted: int) -> list[str]:
    """Says so where the published files hold another number of elements than the blocks count."""
    if spec.num_parameters == counted or spec.stored_parameters in (None, counted):
        return []
    return [
        f"the published files hold {spec.stored_parameters:,} elements, the blocks count {counted:,} parameters:"
        f" buffers, a stored copy of a tied head, or a variant that the {spec.model_type} block does not know"
    ]


def linear_names(step: Step) -> list[str]:
    """Names of the linear layers that may get an adapter."""
    return sorted(
        {
            one.parameter.name.removesuffix(".weight")
            for one in step.placed
            if len(one.parameter.shape) == 2 and one.layer is not None and not one.parameter.is_adapter
        }
        | {"lm_head"}
    )


def evaluation_peak(step: Step, timeline: Timeline) -> int:
    """Allocated peak of an evaluation between two steps: what outlives a step, plus that forward."""
    between = timeline.live_at(len(timeline.events) - 1)
    return sum(storage.rounded_bytes for storage in between) + step.evaluation_bytes()


def phase_at(timeline: Timeline, index: int) -> str:
    """The phase that event `index` belongs to."""
    return [mark.phase for mark in timeline.marks if mark.first_event <= index][-1]


def peak_terms(live: Sequence[Storage], run: Replay) -> list[Term]:
    """What was alive at the allocated peak, alike tensors together, and what the allocator held besides."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for storage in live:
        group = groups.setdefault((storage.category, storage.label, storage.formula), [0, 0])
        group[0] += storage.rounded_bytes
        group[1] += 1
    terms = [
        Term(category, label, size, count, formula) for (category, label, formula), (size, count) in groups.items()
    ]
    terms.sort(key=lambda term: -term.num_bytes)
    tensors = sum(term.num_bytes for term in terms)
    terms.append(
        Term(
            "reserved_unused",
            "ends of blocks too small to split off",
            run.peak_allocated_bytes - tensors,
            formula="large blocks with up to 1 MiB left over are handed out whole",
            source="CUDACachingAllocator.cpp: should_split",
        )
    )
    terms.append(
        Term(
            "reserved_unused",
            "cached by torch's allocator",
            run.peak_reserved_bytes - run.peak_allocated_bytes,
            formula="reserved at its peak, less allocated at its peak",
            source="simulation of CUDACachingAllocator.cpp, torch 2.13",
        )
    )
    return terms


def outside_terms(job: Job) -> list[Term]:
    """Memory that torch's allocator does not see."""
    terms = [
        Term("context", "CUDA context and kernels", CUDA_CONTEXT_BYTES, formula="a prior", source="see overheads.py")
    ]
    if job.num_gpus > 1:
        terms.append(Term("context", "NCCL buffers", NCCL_BYTES, formula="a prior", source="see overheads.py"))
    return terms


def assumptions(job: Job, card: Card) -> tuple[str, ...]:
    """What the answer takes for granted, said with every answer."""
    method = "full fine-tuning"
    if job.method == "lora":
        targets = "all linear layers" if job.lora_targets is None else ", ".join(job.lora_targets)
        method = f"LoRA rank {job.lora_rank} on {targets}, dropout {job.lora_dropout:g}, {job.lora_dtype} adapters"
    weights = f"{job.dtype} weights" + (
        f" under {job.autocast} autocast" if job.autocast != "none" else ", no autocast"
    )
    checkpointing = "full checkpointing" if job.checkpointing == "full" else "no checkpointing"
    loop = "transformers Trainer" if job.loop == "trainer" else "plain loop"
    return (
        method,
        weights,
        f"{job.optimizer}, {checkpointing}, {job.attention} attention, {job.loss} loss, {loop}",
        f"{job.batches} sequences of {job.sequence_length} tokens, all equally long"
        + (
            ", expandable segments"
            if job.expandable_segments
            else " (where lengths vary torch caches more; expandable_segments avoids that)"
        ),
        f"{card.title}: {card.cuda_total_bytes >> 20} MiB visible to CUDA ({card.cuda_total_source})",
        "torch 2.13, transformers 5.23, peft 0.21; CUDA context and NCCL are priors",
    )
