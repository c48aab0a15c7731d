"""How large an image may be: its cost at many sizes, and the largest size, cap, tiling or length that fits a card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vramplan.errors import ConfigError, UnknownNameError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import IMAGE_PROCESSORS, PROCESSORS, Limits, ProcessedImage, Size, count, processed_image
from vramplan.inputs.images.types import image_size
from vramplan.inputs.job import MAX_COUNT
from vramplan.inputs.model_inputs import MODEL_INPUTS
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.calibration import CONFIDENCE
from vramplan.memory.estimate import Estimate
from vramplan.planner import estimate as api
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.monotone_search import LENGTH_STEP, largest
from vramplan.progress import Progress, silent
from vramplan.units import ceil_div

SIZES = tuple(
    Size(*size)
    for size in (
        (336, 336), (448, 448), (672, 672), (896, 896), (1024, 1024), (1344, 896), (1344, 1344), (1920, 1080),
        (2048, 2048), (4000, 3000),
    )
)  # fmt: skip
"""What is shown where no sizes are given: what towers were made for, what is common, what a camera gives."""
TEXT_TOKENS = 256
"""Room for text beside the images, where no length is given."""
QUANTITIES = ("image-size", "max-pixels", "max-tiles", "seq-len")
"""What can be solved for."""
STEP = 28
"""Pixels that a solved side is a multiple of."""
MOST_TRIES = 64
"""More than doubling and halving within MAX_COUNT take."""


@dataclass(frozen=True, slots=True)
class Row:
    """One size on one card."""

    size: Size
    picture: ProcessedImage
    sequence_length: int
    max_micro_batch_size: int
    """Largest micro-batch that fits; 0 where none does."""
    at_one: Estimate
    """At micro-batch 1."""


@dataclass(frozen=True, slots=True)
class Solved:
    """The largest value that fits."""

    quantity: str
    value: int | Size
    job: dict[str, Any]
    """The job with it, as keyword arguments."""
    estimate: Estimate
    bounded: bool
    """Whether the next larger value does not fit; otherwise the model or its processor ends there."""


def table(
    model: str | ModelSpec,
    gpu: str | Gpu,
    sizes: Sequence[Size] = SIZES,
    *,
    progress: Progress = silent,
    confidence: float = CONFIDENCE,
    **job: Any,
) -> list[Row]:
    """What images of each size cost, and the largest micro-batch that fits with them.

    Where no `sequence_length` is given, a sample is its images and 256 tokens of text.

    Raises:
        VramplanError: for a model that takes no images, and whatever cannot run.
    """
    spec, card = _resolve(model, gpu)
    rows = []
    for number, size in enumerate(sizes):
        progress(f"{size} pixels", number / len(sizes))
        settings = fitted(spec, card, {**job, "image_size": size})
        found = api.suggest(spec, card, 1, advice=False, confidence=confidence, **settings)
        full = complete_job(spec, card, settings)
        picture = processed_image(spec, full)
        assert picture is not None
        at_one = found.smallest
        rows.append(Row(size, picture, full.sequence_length, found.max_micro_batch_size, at_one))
    return rows


def counts(
    spec: ModelSpec,
    sizes: Sequence[Size] = SIZES,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    max_tiles: int | None = None,
    frames: int | None = None,
) -> list[tuple[Size, ProcessedImage]]:
    """What the model's processor makes of each size, of an image or of a video of `frames`; memory aside.

    Raises:
        ConfigError: for a model that takes no images, a size or a limit that its processor refuses.
    """
    _check_sees(spec)
    limits = Limits(min_pixels, max_pixels, max_tiles)
    return [(size, count(spec, size, limits, frames)) for size in sizes]


def fitted(spec: ModelSpec, card: Gpu, job: dict[str, Any]) -> dict[str, Any]:
    """The job with a length that holds its images and some text, where none was given."""
    if job.get("sequence_length") is not None:
        return job
    longest = complete_job(spec, card, {**job, "sequence_length": MAX_COUNT})
    picture = processed_image(spec, longest)
    assert picture is not None
    return {**job, "sequence_length": longest.pictures * picture.all_tokens + TEXT_TOKENS}


def solve(
    model: str | ModelSpec,
    gpu: str | Gpu,
    quantity: str,
    *,
    progress: Progress = silent,
    confidence: float = CONFIDENCE,
    **job: Any,
) -> Solved:
    """The largest `quantity` (image-size, max-pixels, max-tiles, seq-len) that fits at the job's micro-batch.

    image-size keeps the shape of the image that was given, or a square.

    Raises:
        ConfigError: where not even the smallest fits.
        VramplanError: for a model that takes no images, and whatever cannot run.
    """
    if quantity not in QUANTITIES:
        raise UnknownNameError("quantity to solve for", quantity, QUANTITIES, f"known: {', '.join(QUANTITIES)}")
    spec, card = _resolve(model, gpu, sees=quantity != "seq-len")
    if "image_size" in job:
        job["image_size"] = image_size(job["image_size"])
    values = _ladder(spec, card, quantity, job)
    tried: dict[int, Estimate | None] = {}

    def fits(index: int) -> bool:
        progress(f"{quantity} {_said(values(index))}", min(0.95, 0.1 * len(tried)))
        found = tried[index] = _run(spec, card, confidence, {**job, **_setting(quantity, values(index))})
        return found is not None and found.fits

    index, _ = largest(1, fits, MOST_TRIES)
    found = tried.get(index)
    if found is None:
        raise ConfigError(f"--solve {quantity}: not even {_said(values(1))} fits {card.title}")
    settings = {**job, **_setting(quantity, values(index))}
    settings = settings if quantity == "seq-len" else fitted(spec, card, settings)
    return Solved(quantity, values(index), settings, found, bounded=tried.get(index + 1) is not None)


def _ladder(spec: ModelSpec, card: Gpu, quantity: str, job: dict[str, Any]) -> Callable[[int], Any]:
    """The values to choose from, by number from 1."""
    width, height = job.get("image_size") or (1, 1)

    def sized(index: int) -> Size:
        long = index * STEP
        short = max(1, round(long * min(width, height) / max(width, height)))
        return Size(long, short) if width >= height else Size(short, long)

    shortest = 0
    if quantity == "seq-len":
        job.pop("sequence_length", None)
        full = complete_job(spec, card, {**job, "sequence_length": MAX_COUNT})
        picture = processed_image(spec, full)
        shortest = full.pictures * picture.all_tokens if picture is not None else 0
    ladders: dict[str, Callable[[int], Any]] = {
        "image-size": sized,
        "max-pixels": lambda index: ceil_div(_least_pixels(spec, job), STEP * STEP) * STEP * STEP + index * STEP * STEP,
        "max-tiles": lambda index: index,
        "seq-len": lambda index: (shortest // LENGTH_STEP + index) * LENGTH_STEP,
    }
    if quantity in ("max-pixels", "max-tiles") and "image_size" not in job:
        job["image_size"] = Size(1 << 13, 1 << 13)  # larger than any cap
    return ladders[quantity]


def _least_pixels(spec: ModelSpec, job: dict[str, Any]) -> int:
    """What the processor enlarges every image to: no cap can be less."""
    shipped = spec.processor.get("min_pixels") or spec.processor.get("size", {}).get("shortest_edge")
    return int(job.get("min_pixels") or shipped or 0)


def _setting(quantity: str, value: Any) -> dict[str, Any]:
    """A value as a field of the job."""
    return {"sequence_length" if quantity == "seq-len" else quantity.replace("-", "_"): value}


def _said(value: Any) -> str:
    return str(value) if isinstance(value, Size) else f"{value:,}"


def _run(spec: ModelSpec, card: Gpu, confidence: float, job: dict[str, Any]) -> Estimate | None:
    """The estimate; None where the model or its processor refuses the job."""
    try:
        settings = fitted(spec, card, job) if spec.model_type in IMAGE_PROCESSORS else job
        return api.estimate(spec, card, confidence=confidence, **settings)
    except ConfigError:
        return None


def _resolve(model: str | ModelSpec, gpu: str | Gpu, sees: bool = True) -> tuple[ModelSpec, Gpu]:
    card = api.load_gpu(gpu)
    spec = api.load_model(model)
    if sees:
        _check_sees(spec)
    return spec, card


def _check_sees(spec: ModelSpec) -> None:
    if spec.model_type in MODEL_INPUTS and MODEL_INPUTS[spec.model_type].image_config is not None:
        raise ConfigError(
            f"{spec.name}: images that go into a text are shown here; `estimate --image-size` knows its own"
        )
    if spec.model_type not in PROCESSORS:
        raise ConfigError(f"{spec.name} takes text alone; models that see are of type {', '.join(sorted(PROCESSORS))}")


__all__ = ["QUANTITIES", "SIZES", "Row", "Solved", "counts", "solve", "table"]
