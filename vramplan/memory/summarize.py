"""From a timeline to an :class:`~vramplan.memory.estimate.Estimate`: the same for every source of timelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import ProcessedImage, shown
from vramplan.inputs.job import Job
from vramplan.inputs.sample_lengths import MICRO_STEPS
from vramplan.memory.allocator import UNLIMITED, AllocatorSettings
from vramplan.memory.calibration import context
from vramplan.memory.estimate import Estimate, Term
from vramplan.memory.overheads import outside_terms
from vramplan.memory.replay import Replay, replay
from vramplan.memory.timeline import Storage, Timeline
from vramplan.units import DTYPE_BYTES, format_bytes

PHASES = ("loaded", "forward", "backward", "optimizer", "eval")


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """What a source found out about a job, the card's limit not yet looked at."""

    by: str
    """analytic, trace or probe."""
    timeline: Timeline
    """Loading and two steps."""
    evaluation_bytes: int
    """Highest sum of live tensors in a forward without gradients, model and states left out."""
    num_parameters: int
    num_trainable_parameters: int
    micro_step_seconds: float
    optimizer_seconds: float
    flops_per_micro_step: int
    versions: str
    """The libraries whose behaviour this is."""
    notes: tuple[str, ...] = ()
    picture: ProcessedImage | None = None
    """What becomes of each image or video; None for a model that does not see."""
    num_vision_parameters: int = 0
    fed: str | None = None
    """What is trained on what, for a model that is no causal language model."""
    own_model: bool = False
    """A user's own model: it chooses its attention, its loss and the shape of its inputs."""

    @property
    def peak_tensor_bytes(self) -> int:
        """Highest sum of live tensors, without kernels' own workspaces."""
        return max(self.timeline.live_bytes(with_kernels=False))


def summarize(played: SimulatedStep, model: str, job: Job, card: Gpu, peak_tensor_bytes: int | None = None) -> Estimate:
    """Replay the timeline on the card, and say what everything is."""
    timeline = played.timeline
    if peak_tensor_bytes is None:
        peak_tensor_bytes = played.peak_tensor_bytes
    outside = outside_terms(job, card)
    outside_bytes = sum(term.num_bytes for term in outside)
    limits = (card.plannable_bytes - outside_bytes, card.usable_bytes - outside_bytes)
    run, fits, fits_without_margin = settle(peak_tensor_bytes, limits, replayer(timeline, job))
    peak_index = max(range(timeline.first_tensor, len(run.allocated)), key=run.allocated.__getitem__)
    allocated = run.allocated[peak_index]
    phases = timeline.phase_peaks(run.allocated)
    loaded_end = timeline.marks[1].first_event - 1
    phases["loaded"] = run.allocated[loaded_end]
    phases["eval"] = evaluation_peak(timeline, played.evaluation_bytes)
    return Estimate(
        model=model,
        by=played.by,
        card=card.name,
        micro_batch_size=job.micro_batch_size,
        gradient_accumulation_steps=job.gradient_accumulation_steps,
        peak_tensor_bytes=peak_tensor_bytes,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=run.peak_reserved_bytes,
        device_total_bytes=run.peak_reserved_bytes + sum(term.num_bytes for term in outside),
        capacity_bytes=card.usable_bytes,
        margin_bytes=card.margin_bytes,
        fits=fits,
        fits_without_margin=fits_without_margin,
        phases={name: phases[name] for name in PHASES},
        peak_phase=phase_at(timeline, peak_index),
        terms=(*peak_terms(timeline.live_at(peak_index), allocated, run.peak_reserved_bytes), *outside),
        num_parameters=played.num_parameters,
        num_trainable_parameters=played.num_trainable_parameters,
        assumptions=assumptions(job, card, played),
        notes=played.notes,
        image_tokens_per_sample=None if played.picture is None else job.pictures * played.picture.all_tokens,
        num_vision_parameters=played.num_vision_parameters,
        micro_step_seconds=played.micro_step_seconds,
        optimizer_seconds=played.optimizer_seconds,
        flops_per_micro_step=played.flops_per_micro_step,
        job=job,
        timeline=timeline,
    )


def replayer(timeline: Timeline, job: Job) -> Callable[[int], Replay]:
    """The allocator's replay of a timeline under the job's settings, by what torch may reserve."""
    sizes, streams = timeline.sizes(), timeline.streams()
    settings = AllocatorSettings(expandable_segments=job.expandable_segments)
    return lambda limit: replay(timeline.events, sizes, limit, settings, streams=streams)


def settle(
    peak_tensor_bytes: int, limits: tuple[int, int], replayed: Callable[[int], Replay]
) -> tuple[Replay, bool, bool]:
    """(the replay that counts, whether it fits, whether it does without the margin); limits with it and without."""
    verdicts, run = [], None
    for limit in dict.fromkeys(limits):
        run = replayed(limit) if peak_tensor_bytes <= limit else None
        verdicts.append(run is not None and not run.out_of_memory)
        if verdicts[-1]:  # what fits under this limit fits under a larger one
            break
    if run is None or run.out_of_memory:  # what it would need on a card without limit
        run = replayed(UNLIMITED)
    return run, verdicts[0], verdicts[-1]


STRATEGIES = {
    "ddp": "DDP: each card holds everything",
    "zero0": "DeepSpeed without ZeRO: each card holds everything, fp32 copies of what trains beside it",
    "zero1": "DeepSpeed ZeRO-1: optimizer states are divided",
    "zero2": "DeepSpeed ZeRO-2: gradients and optimizer states are divided",
    "zero3": "DeepSpeed ZeRO-3: weights, gradients and optimizer states are divided",
    "device_map": "device_map auto: one process, the layers spread over the cards, which work one after another",
    "fsdp": "FSDP: weights, gradients and optimizer states are divided",
}


def said_sharing(job: Job) -> str:
    """How cards share the work; nothing where there is one."""
    if job.num_gpus == 1 and job.strategy == "ddp":
        return ""
    if job.strategy != "fsdp":
        return STRATEGIES[job.strategy]
    whole = f", in {job.fsdp.replicas} replicas of the whole" if job.fsdp.replicas > 1 else ""
    return f"{STRATEGIES['fsdp']} (version {job.fsdp.version}{whole})"


def _sharing(job: Job, played: SimulatedStep) -> list[str]:
    """The same, and what the host keeps for each of them."""
    said = [one for one in (said_sharing(job), _four_bits_shared(job)) if one]
    if job.offload != "none":
        size = DTYPE_BYTES[job.dtype]
        # fp32 weights and gradients, Adam's states, DeepSpeed's half-precision gradients (0.19, offload_optimizer)
        host = (4 + 4 + 8 + (size if job.strategy != "fsdp" else 0)) * played.num_trainable_parameters
        base = played.num_parameters * size // (4 if job.quantize == "nf4" else 1)
        host += base if job.offload == "all" and (job.strategy != "fsdp" or job.method != "full") else 0
        said.append(f"the host holds about {format_bytes(host // job.num_gpus)} for each card, pinned")
    return said


def _four_bits_shared(job: Job) -> str:
    """What becomes of a base in four bits where weights are divided."""
    if job.quantize == "none" or job.strategy not in ("fsdp", "zero3"):
        return ""
    if job.strategy == "zero3":
        return (
            "the base is loaded whole on every card, then divided; what is gathered of it bitsandbytes holds until the"
            " step is over"
        )
    if job.quant_storage == "uint8":
        return (
            "four-bit weights, packed in uint8, stay whole on every card; bnb_4bit_quant_storage: bfloat16 divides them"
        )
    where = "every card, as by transformers 5 (4 does on the host)" if job.fsdp.loads_whole_model else "the host"
    return f"the base is loaded whole on {where}, then divided"


def _texts(job: Job) -> str:
    if job.lengths is None:
        return f"{job.batches} sequences of {job.sequence_length} tokens, all equally long"
    found = [min(one, job.sequence_length) for one in job.lengths]
    return (
        f"{job.batches} sequences of {job.sequence_length} tokens behind {MICRO_STEPS} micro-batches whose samples have"
        f" {min(found)} to {max(found)}, which leave their blocks in torch's cache"
    )


def _images(job: Job, picture: ProcessedImage | None) -> str:
    """What is seen, and what trains of what sees it."""
    if picture is None:
        return ""
    parts = " and ".join(f"{name} {state}" for name, state in (("vision", job.vision), ("projector", job.projector)))
    if not job.pictures:
        return f"no images, {parts}, "
    size, frames = shown(job)
    each = f"{job.pictures} {'image' if frames is None else 'video'}{'s' * (job.pictures > 1)} of "
    each += f"{size} pixels" if frames is None else f"{frames} frames of {size} pixels"
    given = job.image_size and (frames is None or job.frames)
    said = "" if given else " (not given)"
    return f"{each}{said} as {picture.description}: {job.pictures * picture.all_tokens:,} tokens; {parts}; "


def evaluation_peak(timeline: Timeline, evaluation_bytes: int) -> int:
    """Allocated peak of an evaluation between two steps: what outlives a step, plus that forward."""
    between = timeline.live_at(len(timeline.events) - 1)
    return sum(storage.rounded_bytes for storage in between) + evaluation_bytes


def phase_at(timeline: Timeline, index: int) -> str:
    """The phase that event `index` belongs to."""
    return [mark.phase for mark in timeline.marks if mark.first_event <= index][-1]


def peak_terms(live: Sequence[Storage], allocated_bytes: int, reserved_bytes: int) -> list[Term]:
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
            allocated_bytes - tensors,
            formula="large blocks with up to 1 MiB left over are handed out whole",
            source="CUDACachingAllocator.cpp: should_split",
        )
    )
    terms.append(
        Term(
            "reserved_unused",
            "cached by torch's allocator",
            reserved_bytes - allocated_bytes,
            formula="reserved at its peak, less allocated at its peak",
            source="simulation of CUDACachingAllocator.cpp, torch 2.13",
        )
    )
    return terms


def _quantized(job: Job) -> str:
    """How linear layers are stored, where it is not as the rest."""
    if job.quantize == "int8":
        return "int8 linear layers (no outliers), other "
    four = f"nf4 linear layers{' (double quantization)' if job.double_quant else ''}, other "
    return four if job.quantize == "nf4" else ""


def said_method(job: Job) -> str:
    """What trains."""
    if job.method == "full":
        return "full fine-tuning"
    targets = "all linear layers" if job.lora_targets is None else ", ".join(job.lora_targets)
    adapters = f"rank {job.lora_rank} on {targets}, dropout {job.lora_dropout:g}, {job.lora_dtype} adapters"
    method = f"{'DoRA' if job.method == 'dora' else 'LoRA'} {adapters}"
    if job.modules_to_save:
        copies = f"{job.saved_dtype} copies" if job.saved_dtype else "copies"
        method += f"; {', '.join(job.modules_to_save)} trained whole, in {copies}"
    return method


def said_weights(job: Job) -> str:
    """How weights are stored, and what is computed in."""
    if job.engine_casts and (job.prepare_for_kbit_training or job.fp32_norms):
        return f"{_quantized(job)}{job.dtype} weights, which DeepSpeed makes of fp32 ones, no autocast"
    weights = f"{_quantized(job)}{'fp32' if job.prepare_for_kbit_training else job.dtype} weights"
    weights += " but fp32 norms" if job.fp32_norms else ""
    if job.computed_dtype and job.method == "full" and job.dtype != "fp32":
        return f"{weights}, which accelerate divides in fp32 and gathers in {job.computed_dtype}"
    return weights + (f" under {job.autocast} autocast" if job.autocast != "none" else ", no autocast")


def said_engine(job: Job, own_model: bool = False) -> str:
    """Optimizer, checkpointing, kernels and loop."""
    kind = ("reentrant" if job.reentrant else "full") + " checkpointing"
    kind += " around FSDP's layers" if job.strategy == "fsdp" and job.fsdp.checkpoint_wraps_fsdp else ""
    checkpointing = kind if job.checkpointing == "full" else "no checkpointing"
    kernels = "" if own_model else f"{job.attention} attention, {job.loss} loss, "
    loop = "transformers Trainer" if job.loop == "trainer" else "plain loop"
    return f"{job.optimizer}, {checkpointing}, {kernels}{loop}"


def assumptions(job: Job, card: Gpu, played: SimulatedStep) -> tuple[str, ...]:
    """What the answer takes for granted, said with every answer."""
    source = {"trace": "the model's own code, traced with "}.get(played.by, "") + played.versions
    return (
        said_method(job),
        said_weights(job),
        *_sharing(job, played),
        said_engine(job, played.own_model),
        *(("the model is loaded onto the card at once (device_map)",) if job.device_map else ()),
        "the example's own inputs"
        if played.own_model
        else (played.fed or _images(job, played.picture) + _texts(job))
        + (
            ", expandable segments"
            if job.expandable_segments
            else ""
            if job.lengths is not None
            else " (where lengths vary torch caches more; expandable_segments avoids that)"
        ),
        f"{card.title}: {card.cuda_total_bytes >> 20} MiB visible to CUDA ({card.cuda_total_source})",
        card.margin_source or "no safety margin",
        f"{source}; {'NCCL is a prior' if context(card) else 'CUDA context and NCCL are priors'}",
    )
