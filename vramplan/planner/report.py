"""One job, and what varies around it in a report: length, rank, images, checkpointing, card and micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import IMAGE_PROCESSORS, shown
from vramplan.inputs.images.types import image_size
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.batch_scaling import Segment, segments
from vramplan.memory.calibration import CONFIDENCE, with_margin
from vramplan.memory.estimate import Estimate
from vramplan.memory.overheads import outside_bytes
from vramplan.memory.timeline import Timeline
from vramplan.planner import estimate
from vramplan.planner.estimate_cache import Estimator
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.lever_effects import Advice, pull
from vramplan.planner.levers import memory_levers
from vramplan.planner.suggest import Search
from vramplan.progress import Progress, silent

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
CARDS = ("rtx4090", "l40s", "a100-80gb-sxm")
"""Beside the one that is asked for, a usual card of each size."""
RANKS = (8, 64)
SIDES = ((448, 448), (1024, 1024))
"""Of images, beside the size that is asked for."""
GLOBAL_BATCH = 16
"""For each card, where no batch is given."""
LIMITLESS = 1 << 50
"""Bytes of a card that never is full."""


@dataclass(frozen=True, slots=True)
class Column:
    """One choice on one kind of card: cards on which a step is the same, but for how much fits."""

    estimates: Mapping[int, Estimate]
    """By micro-batch, on a card of this kind without limit: what any card shows on which the limit is not felt."""
    pressed: Mapping[tuple[str, int], Estimate]
    """By card and micro-batch, where that card's own limit is felt, but the tensors fit."""
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of each axis."""

    values: Mapping[str, Any]
    """Fields of the job."""
    reason: str
    """Why it cannot be; empty where it can."""
    columns: tuple[Column, ...] = ()
    """By kind of card."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What a report is made of."""

    start: Estimate
    search: Search
    """Plans for the global batch."""
    levers: tuple[Advice, ...]
    """What each change saves at the start, cheapest first."""
    axes: Mapping[str, tuple[Any, ...]]
    """Values of each field that varies."""
    cards: tuple[Gpu, ...]
    """The one that is asked for comes first."""
    kinds: tuple[int, ...]
    """Of each card, by number."""
    outside: tuple[int, ...]
    """Bytes that each card holds outside torch's allocator."""
    choices: tuple[Choice, ...]

    @property
    def begin(self) -> Choice:
        """The choice that the start is."""
        return next(one for one in self.choices if all(getattr(self.start.job, k) == v for k, v in one.values.items()))


@dataclass(frozen=True, slots=True)
class Source:
    """Estimates of one model, on any card, from what was given of the job."""

    spec: ModelSpec
    given: Mapping[str, Any]
    estimator: Estimator
    settle: Callable[[ModelSpec, Job], Job]

    def job(self, card: Gpu, **update: Any) -> Job:
        """The job on a card, some fields of it changed."""
        return self.settle(self.spec, complete_job(self.spec, card, {**self.given, **update}))

    def __call__(self, card: Gpu, **update: Any) -> Estimate:
        """What that job needs."""
        return self.estimator(self.spec, self.job(card, **update), card).complete()


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

    Where neither a micro-batch nor an accumulation is given it starts from the plan that is recommended for
    `global_batch`. The other sequences are what can be chosen beside the job's own.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    spec, card = estimate.load_model(model), with_margin(estimate.load_gpu(gpu), confidence)
    estimator, settle, described = estimate.source(spec, progress, trust_remote_code)
    batch = {
        name: job.pop(name) for name in ("micro_batch_size", "gradient_accumulation_steps") if job.get(name) is not None
    }
    first = complete_job(spec, card, {**job, **batch})
    if first.lengths is not None:
        raise UnsupportedError("--lengths: a report is about equal lengths; estimate and suggest take it")
    if first.strategy == "device_map":
        raise UnsupportedError("--strategy device_map: a report is about one card; estimate and suggest show them all")
    if (
        first.pictures and spec.model_type in IMAGE_PROCESSORS and first.image_size is None
    ):  # what is assumed can be changed as well
        size, _ = shown(first)
        job["image_size"] = (size.width, size.height)
        first = complete_job(spec, card, {**job, **batch})
    wanted = global_batch or (first.global_batch_size if batch else GLOBAL_BATCH * first.data_parallel)
    others = [with_margin(estimate.load_gpu(name), confidence) for name in (cards if cards is not None else CARDS)]
    _axes(first, described, sequence_lengths, ranks, image_sizes)  # what cannot be chosen is refused before any work
    found = estimate.suggest(
        spec, card, wanted, advice=False, progress=progress, confidence=confidence,
        trust_remote_code=trust_remote_code, **job,
    )  # fmt: skip
    if not batch:
        chosen = found.recommended.estimate if found.recommended else found.smallest
        batch = chosen.job.model_dump(include={"micro_batch_size", "gradient_accumulation_steps"})
    source = Source(spec, {**job, **batch}, estimator, settle)
    start = source(card)
    helpful = memory_levers(spec, start.job, card, start.device_total_bytes) if described else []
    advice = tuple(pull(spec, start.job, card, estimator, helpful))
    axes = _axes(start.job, described, sequence_lengths, ranks, image_sizes)
    offered, kinds, representatives = _kinds(source, [card, *(other for other in others if other.name != card.name)])
    micros = sorted({*MICRO_BATCHES, start.micro_batch_size})
    combined = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    choices = []
    for number, values in enumerate(combined):
        progress(f"{len(combined)} choices of length, rank and the like", number / len(combined))
        choices.append(_choice(source, values, micros, offered, kinds, representatives))
    outside = tuple(outside_bytes(start.job, one) for one in offered)
    return Grid(_light(start), found, advice, axes, tuple(offered), tuple(kinds), outside, tuple(choices))


def _axes(
    job: Job,
    described: bool,
    lengths: Sequence[int] | None,
    ranks: Sequence[int] | None,
    image_sizes: Sequence[str | tuple[int, int]] | None,
) -> dict[str, tuple[Any, ...]]:
    """What varies, the job's own values among it. A trace takes seconds: only what is asked for is traced."""
    own = job.sequence_length
    if lengths is None:
        lengths = (max(1, own // 2), own * 2) if described else ()
    axes: dict[str, tuple[Any, ...]] = {"sequence_length": tuple(sorted({*lengths, own}))}
    if job.method != "full":
        more = ranks if ranks is not None else RANKS if described else ()
        axes["lora_rank"] = tuple(sorted({*more, job.lora_rank}))
    elif ranks:
        raise ConfigError("--lora-ranks has no meaning with --method full")
    axes["checkpointing"] = ("full", "none") if described else (job.checkpointing,)
    if job.pictures and job.image_size:
        sizes = image_sizes if image_sizes is not None else SIDES if described else ()
        axes["image_size"] = tuple(sorted({*(image_size(size) for size in sizes), job.image_size}))
    elif image_sizes:
        raise ConfigError("--image-sizes: the job has no images of a size; give --image-size")
    return axes


def _kinds(source: Source, cards: Sequence[Gpu]) -> tuple[list[Gpu], list[int], list[Gpu]]:
    """The cards that the job runs on, the number of each one's kind, and a card of each kind without limit."""
    offered: list[Gpu] = []
    kinds: list[int] = []
    steps: list[tuple[Gpu, Job, Timeline]] = []
    for card in cards:
        wide = card.model_copy(update={"cuda_total_bytes": LIMITLESS, "held_bytes": 0, "margin_bytes": 0})
        try:
            one = source(wide)
        except VramplanError:
            if not offered:
                raise
            continue  # a card that this job does not run on is not offered
        assert one.timeline is not None
        same = (n for n, (_, job, line) in enumerate(steps) if job == one.job and _alike(line, one.timeline))
        kind = next(same, len(steps))
        if kind == len(steps):
            steps.append((wide, one.job, one.timeline))
        offered.append(card)
        kinds.append(kind)
    return offered, kinds, [wide for wide, _, _ in steps]


def _alike(one: Timeline, other: Timeline) -> bool:
    return one.events == other.events and one.sizes() == other.sizes()


def _choice(
    source: Source,
    values: Mapping[str, Any],
    micros: Sequence[int],
    cards: Sequence[Gpu],
    kinds: Sequence[int],
    representatives: Sequence[Gpu],
) -> Choice:
    columns = []
    for kind, wide in enumerate(representatives):
        mine = [card for card, its in zip(cards, kinds, strict=True) if its == kind]
        try:
            columns.append(_column(source, values, micros, mine, wide))
        except VramplanError as error:
            return Choice(values, str(error))
    return Choice(values, "", tuple(columns))


def _column(
    source: Source, values: Mapping[str, Any], micros: Sequence[int], cards: Sequence[Gpu], wide: Gpu
) -> Column:
    """Micro-batches until one is too large for all cards, that one included."""
    estimates, pressed, steps = {}, {}, {}
    for micro in micros:
        one = source(wide, **values, micro_batch_size=micro)
        assert one.timeline is not None
        estimates[micro], steps[micro] = _light(one), one.timeline
        holds = [card for card in cards if _least(one, card) <= card.usable_bytes]
        for card in holds:
            if _total(one, card) > card.plannable_bytes:
                pressed[card.name, micro] = _light(source(card, **values, micro_batch_size=micro))
        if not holds and micro >= source.given["micro_batch_size"]:
            break
    return Column(estimates, pressed, segments(steps))


def _least(one: Estimate, card: Gpu) -> int:
    """Bytes on `card` that the tensors alone take."""
    return one.peak_tensor_bytes + outside_bytes(one.job, card)


def _total(one: Estimate, card: Gpu) -> int:
    return one.peak_reserved_bytes + outside_bytes(one.job, card)


def _light(one: Estimate) -> Estimate:
    """The estimate without its events."""
    return replace(one, timeline=None)
