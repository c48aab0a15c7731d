"""The figures of a report: one job, varied by length, rank, images, checkpointing, GPU and micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from vramplan.analytic.unfolded_step import no_cycle_collection
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnsupportedError, VramplanError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import IMAGE_PROCESSORS, shown
from vramplan.inputs.images.types import image_size
from vramplan.inputs.job import Job
from vramplan.inputs.load import load_gpu, load_model
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.batch_scaling import Segment, segments
from vramplan.memory.calibration import CONFIDENCE, plannable_bytes, with_margin
from vramplan.memory.estimate import Estimate
from vramplan.memory.overheads import outside_bytes
from vramplan.memory.timeline import Timeline
from vramplan.planner.estimate import estimator_for
from vramplan.planner.estimate_cache import Estimator
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.levers import apply_levers, memory_levers
from vramplan.planner.search_result import LeverEffect, Search
from vramplan.planner.suggest import suggest
from vramplan.progress import Progress, silent

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
CARDS = ("rtx4090", "l40s", "a100-80gb-sxm")
"""A usual GPU of each size, beside the one that is asked for."""
RANKS = (8, 64)
IMAGE_SIZES = ((448, 448), (1024, 1024))
"""Of images, beside the size that is asked for."""
BATCH_PER_GPU = 16
"""For each GPU if no batch is given."""
UNLIMITED = 1 << 50
"""Bytes of a GPU that never is full."""


@dataclass(frozen=True, slots=True)
class Column:
    """One choice on one kind of GPU: GPUs on which a step is the same, but for how much fits."""

    estimates: Mapping[int, Estimate]
    """By micro-batch, on a GPU of this kind without a limit; true for each whose own limit does not matter."""
    pressed: Mapping[tuple[str, int], Estimate]
    """By GPU and micro-batch, if the GPU's own limit matters, but the tensors fit."""
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of each axis."""

    values: Mapping[str, Any]
    """Fields of the job."""
    reason: str
    """Why it cannot run; empty if it can."""
    columns: tuple[Column, ...] = ()
    """By kind of GPU."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Everything that a report shows."""

    start: Estimate
    search: Search
    """Plans for the global batch."""
    levers: tuple[LeverEffect, ...]
    """What each change saves at the start, cheapest first."""
    axes: Mapping[str, tuple[Any, ...]]
    """Values of each field that varies."""
    cards: tuple[Gpu, ...]
    """The one that is asked for comes first."""
    kinds: tuple[int, ...]
    """The kind of each GPU, by number."""
    outside: tuple[int, ...]
    """Bytes on each GPU outside PyTorch's allocator."""
    choices: tuple[Choice, ...]

    @property
    def begin(self) -> Choice:
        """The choice that the report starts with."""
        return next(
            choice for choice in self.choices if all(getattr(self.start.job, k) == v for k, v in choice.values.items())
        )


@dataclass(frozen=True, slots=True)
class Source:
    """Estimates of one model on any GPU, from the settings of the job."""

    spec: ModelSpec
    given: Mapping[str, Any]
    estimator: Estimator
    settle: Callable[[ModelSpec, Job], Job]

    def job(self, gpu: Gpu, **update: Any) -> Job:
        """The job on a GPU, with some fields changed."""
        return self.settle(self.spec, complete_job(self.spec, gpu, {**self.given, **update}))

    def __call__(self, gpu: Gpu, **update: Any) -> Estimate:
        """The estimate of that job."""
        return self.estimator(self.spec, self.job(gpu, **update), gpu, several=True).complete()


@no_cycle_collection()
def build(
    model: str | ModelSpec,
    gpu: str | Gpu,
    *,
    global_batch: int | None = None,
    cards: Sequence[str | Gpu] | None = None,
    sequence_lengths: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
    image_sizes: Sequence[str | tuple[int, int]] | None = None,
    confidence: float = CONFIDENCE,
    progress: Progress = silent,
    trust_remote_code: bool = False,
    **job: Any,
) -> Grid:
    """Every figure of a report; keyword arguments are the fields of :class:`vramplan.Job`.

    If neither a micro-batch nor an accumulation is given, the report starts with the plan that is recommended for
    `global_batch`. The other sequences are the values that can be chosen beside the job's own.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    spec, own_gpu = load_model(model), with_margin(load_gpu(gpu), confidence)
    estimator, settle, is_analytic = estimator_for(spec, progress, trust_remote_code)
    batch = {
        name: job.pop(name) for name in ("micro_batch_size", "gradient_accumulation_steps") if job.get(name) is not None
    }
    first_job = complete_job(spec, own_gpu, {**job, **batch})
    if first_job.lengths is not None:
        raise UnsupportedError(f"{setting('lengths')}: a report is about equal lengths; estimate and suggest take it")
    if first_job.strategy == "device_map":
        raise UnsupportedError(
            f"{setting('strategy', 'device_map')}: a report is about one GPU; estimate and suggest show them all"
        )
    takes_images = first_job.pictures and spec.model_type in IMAGE_PROCESSORS
    if takes_images and first_job.image_size is None:  # the assumed size can be changed as well
        size, _ = shown(first_job)
        job["image_size"] = (size.width, size.height)
        first_job = complete_job(spec, own_gpu, {**job, **batch})
    target = global_batch or (first_job.global_batch_size if batch else BATCH_PER_GPU * first_job.data_parallel)
    other_gpus = [with_margin(load_gpu(name), confidence) for name in (cards if cards is not None else CARDS)]
    _axes(first_job, is_analytic, sequence_lengths, ranks, image_sizes)  # an invalid choice is refused before any work
    search = suggest(
        spec, own_gpu, target, advice=False, progress=progress, confidence=confidence,
        trust_remote_code=trust_remote_code, **job,
    )  # fmt: skip
    if not batch:
        estimate = search.recommended.estimate if search.recommended else search.smallest
        batch = estimate.job.model_dump(include={"micro_batch_size", "gradient_accumulation_steps"})
    source = Source(spec, {**job, **batch}, estimator, settle)
    start = source(own_gpu)
    changes = memory_levers(spec, start.job, own_gpu, start.device_total_bytes) if is_analytic else []
    effects = tuple(apply_levers(spec, start.job, own_gpu, estimator, changes))
    axes = _axes(start.job, is_analytic, sequence_lengths, ranks, image_sizes)
    runnable, kinds, representatives = _kinds(
        source, [own_gpu, *(other for other in other_gpus if other.name != own_gpu.name)]
    )
    micros = sorted({*MICRO_BATCHES, start.micro_batch_size})
    combinations = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    choices = []
    for number, values in enumerate(combinations):
        progress(f"{len(combinations)} choices of length, rank and the like", number / len(combinations))
        choices.append(_choice(source, values, micros, runnable, kinds, representatives))
    outside = tuple(outside_bytes(start.job, runnable_gpu) for runnable_gpu in runnable)
    return Grid(_light(start), search, effects, axes, tuple(runnable), tuple(kinds), outside, tuple(choices))


def _axes(
    job: Job,
    is_analytic: bool,
    lengths: Sequence[int] | None,
    ranks: Sequence[int] | None,
    image_sizes: Sequence[str | tuple[int, int]] | None,
) -> dict[str, tuple[Any, ...]]:
    """The values to choose from, the job's own among them. Traces take seconds: only what is asked for is traced."""
    length = job.sequence_length
    if lengths is None:
        lengths = (max(1, length // 2), length * 2) if is_analytic else ()
    axes: dict[str, tuple[Any, ...]] = {"sequence_length": tuple(sorted({*lengths, length}))}
    if job.method != "full":
        other_ranks = ranks if ranks is not None else RANKS if is_analytic else ()
        axes["lora_rank"] = tuple(sorted({*other_ranks, job.lora_rank}))
    elif ranks:
        raise ConfigError(f"{setting('lora_ranks')} has no meaning with {setting('method', 'full')}")
    axes["checkpointing"] = ("full", "none") if is_analytic else (job.checkpointing,)
    if job.pictures and job.image_size:
        sizes = image_sizes if image_sizes is not None else IMAGE_SIZES if is_analytic else ()
        axes["image_size"] = tuple(sorted({*(image_size(size) for size in sizes), job.image_size}))
    elif image_sizes:
        raise ConfigError(f"{setting('image_sizes')}: the job has no images of a size; give {setting('image_size')}")
    return axes


def _kinds(source: Source, gpus: Sequence[Gpu]) -> tuple[list[Gpu], list[int], list[Gpu]]:
    """The GPUs that the job runs on, the number of each one's kind, and a GPU of each kind without a limit."""
    runnable: list[Gpu] = []
    kinds: list[int] = []
    steps: list[tuple[Gpu, Job, Timeline]] = []
    for gpu in gpus:
        unlimited = gpu.model_copy(update={"cuda_total_bytes": UNLIMITED, "held_bytes": 0, "margin_confidence": 0.0})
        try:
            estimate = source(unlimited)
        except VramplanError:
            if not runnable:
                raise
            continue  # the job does not run on this GPU
        assert estimate.timeline is not None
        equal = (
            n
            for n, (_, job, timeline) in enumerate(steps)
            if job == estimate.job and _alike(timeline, estimate.timeline)
        )
        kind = next(equal, len(steps))
        if kind == len(steps):
            steps.append((unlimited, estimate.job, estimate.timeline))
        runnable.append(gpu)
        kinds.append(kind)
    return runnable, kinds, [unlimited for unlimited, _, _ in steps]


def _alike(left: Timeline, right: Timeline) -> bool:
    return (left.events, left.kind_of, left.sizes()) == (right.events, right.kind_of, right.sizes())


def _choice(
    source: Source,
    values: Mapping[str, Any],
    micros: Sequence[int],
    gpus: Sequence[Gpu],
    kinds: Sequence[int],
    representatives: Sequence[Gpu],
) -> Choice:
    columns = []
    for kind, unlimited in enumerate(representatives):
        gpus_of_kind = [gpu for gpu, kind_of_gpu in zip(gpus, kinds, strict=True) if kind_of_gpu == kind]
        try:
            columns.append(_column(source, values, micros, gpus_of_kind, unlimited))
        except VramplanError as error:
            return Choice(values, str(error))
    return Choice(values, "", tuple(columns))


def _column(
    source: Source, values: Mapping[str, Any], micros: Sequence[int], gpus: Sequence[Gpu], unlimited: Gpu
) -> Column:
    """Micro-batches up to the first that is too large for all GPUs."""
    estimates, pressed, steps = {}, {}, {}
    for micro in micros:
        estimate = source(unlimited, **values, micro_batch_size=micro)
        assert estimate.timeline is not None
        estimates[micro], steps[micro] = _light(estimate), estimate.timeline
        holding = [gpu for gpu in gpus if _least(estimate, gpu) <= gpu.usable_bytes]
        for gpu in holding:
            if _total(estimate, gpu) > plannable_bytes(estimate.job, gpu):
                pressed[gpu.name, micro] = _light(source(gpu, **values, micro_batch_size=micro))
        if not holding and micro >= source.given["micro_batch_size"]:
            break
    return Column(estimates, pressed, segments(steps))


def _least(estimate: Estimate, gpu: Gpu) -> int:
    """Bytes on a GPU that the tensors alone need."""
    return estimate.peak_tensor_bytes + outside_bytes(estimate.job, gpu)


def _total(estimate: Estimate, gpu: Gpu) -> int:
    return estimate.peak_reserved_bytes + outside_bytes(estimate.job, gpu)


def _light(estimate: Estimate) -> Estimate:
    """The estimate without its events."""
    return replace(estimate, timeline=None)
