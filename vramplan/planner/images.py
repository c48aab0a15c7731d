"""Memory of images of many sizes, and the largest size, pixel limit, tile count or length that fits a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vramplan.analytic.rollout import vllm_share
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnknownNameError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import (
    IMAGE_PROCESSORS,
    PROCESSORS,
    Limits,
    ProcessedImage,
    Size,
    process_image,
    processed_image,
)
from vramplan.inputs.images.types import image_size
from vramplan.inputs.job_values import MAX_COUNT
from vramplan.inputs.load import load_gpu, load_model
from vramplan.inputs.model_inputs import MODEL_INPUTS
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.rollout_rules import is_colocated
from vramplan.memory.calibration import CONFIDENCE
from vramplan.memory.estimate import Estimate
from vramplan.planner.estimate import estimate
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.monotone_search import LENGTH_STEP, largest
from vramplan.planner.suggest import suggest
from vramplan.progress import Progress, silent
from vramplan.units import ceil_div

SIZES = tuple(
    Size(*size)
    for size in (
        (336, 336), (448, 448), (672, 672), (896, 896), (1024, 1024), (1344, 896), (1344, 1344), (1920, 1080),
        (2048, 2048), (4000, 3000),
    )
)  # fmt: skip
"""Sizes if none are given: those that vision towers were trained with, common ones, a camera's."""
SAMPLE_TEXT_TOKENS = 256
"""Tokens of text beside the images if no length is given."""
QUANTITIES = ("image-size", "max-pixels", "max-tiles", "seq-len", "vllm-share")
WITHOUT_IMAGES = ("seq-len", "vllm-share")
"""Quantities that :func:`solve` maximizes, and those of them that need no images."""
STEP = 28
"""A solved side is a multiple of this many pixels."""
MAX_TRIES = 64
"""More than doubling and halving within MAX_COUNT need."""


@dataclass(frozen=True, slots=True)
class ImageSizeRow:
    """Tokens and memory of images of one size."""

    size: Size
    image: ProcessedImage
    sequence_length: int
    max_micro_batch_size: int
    """Largest micro-batch that fits; 0 if none does."""
    estimate: Estimate
    """The estimate at micro-batch 1."""


@dataclass(frozen=True, slots=True)
class Solved:
    """The largest value of a quantity that fits."""

    quantity: str
    value: int | Size
    job: dict[str, Any]
    """Settings of the job with that value, as keyword arguments."""
    estimate: Estimate
    bounded: bool
    """Whether the next larger value does not fit; otherwise the model or its processor allows no larger one."""


def image_size_table(
    model: str | ModelSpec,
    gpu: str | Gpu,
    sizes: Sequence[Size] = SIZES,
    *,
    progress: Progress = silent,
    confidence: float = CONFIDENCE,
    **job: Any,
) -> list[ImageSizeRow]:
    """Tokens and memory of images of each size, and the largest micro-batch that fits.

    If no `sequence_length` is given, a sample is its images and 256 tokens of text.

    Raises:
        VramplanError: if the model takes no images, or the job cannot run.
    """
    spec, resolved_gpu = _load(model, gpu)
    rows = []
    for number, size in enumerate(sizes):
        progress(f"{size} pixels", number / len(sizes))
        settings = with_sequence_length(spec, resolved_gpu, {**job, "image_size": size})
        search = suggest(spec, resolved_gpu, 1, advice=False, confidence=confidence, **settings)
        full_job = complete_job(spec, resolved_gpu, settings)
        image = processed_image(spec, full_job)
        assert image is not None
        rows.append(ImageSizeRow(size, image, full_job.sequence_length, search.max_micro_batch_size, search.smallest))
    return rows


def process_sizes(
    spec: ModelSpec,
    sizes: Sequence[Size] = SIZES,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    max_tiles: int | None = None,
    frames: int | None = None,
) -> list[tuple[Size, ProcessedImage]]:
    """(size, image after the model's processor) of each size; videos of `frames` frames if that is given.

    Raises:
        ConfigError: if the model takes no images, or its processor refuses a size or a limit.
    """
    _check_takes_images(spec)
    limits = Limits(min_pixels, max_pixels, max_tiles)
    return [(size, process_image(spec, size, limits, frames)) for size in sizes]


def with_sequence_length(spec: ModelSpec, gpu: Gpu, job: dict[str, Any]) -> dict[str, Any]:
    """The settings of a job with a length for its images and 256 tokens of text, unless they have a length."""
    if job.get("sequence_length") is not None:
        return job
    longest_job = complete_job(spec, gpu, {**job, "sequence_length": MAX_COUNT})
    image = processed_image(spec, longest_job)
    assert image is not None
    return {**job, "sequence_length": longest_job.pictures * image.all_tokens + SAMPLE_TEXT_TOKENS}


def solve(
    model: str | ModelSpec,
    gpu: str | Gpu,
    quantity: str,
    *,
    progress: Progress = silent,
    confidence: float = CONFIDENCE,
    **job: Any,
) -> Solved:
    """The largest `quantity` (one of :data:`QUANTITIES`) that fits at the job's micro-batch.

    image-size keeps the aspect ratio of the job's image size; without one, images are square.

    Raises:
        ConfigError: if not even the smallest value fits.
        VramplanError: if the model takes no images, or the job cannot run.
    """
    if quantity not in QUANTITIES:
        raise UnknownNameError("quantity to solve for", quantity, QUANTITIES, f"known: {', '.join(QUANTITIES)}")
    spec, resolved_gpu = _load(model, gpu, needs_images=quantity not in WITHOUT_IMAGES)
    if "image_size" in job:
        job["image_size"] = image_size(job["image_size"])
    value_at = _values(spec, resolved_gpu, quantity, job)
    estimates: dict[int, Estimate | None] = {}

    def fits(index: int) -> bool:
        progress(f"{quantity} {_format(value_at(index))}", min(0.95, 0.1 * len(estimates)))
        settings = {**job, **_as_settings(quantity, value_at(index))}
        estimates[index] = estimate_at_index = _estimate(spec, resolved_gpu, confidence, settings)
        return estimate_at_index is not None and estimate_at_index.fits

    index, _ = largest(1, fits, MAX_TRIES)
    estimate_of_largest = estimates.get(index)
    if estimate_of_largest is None:
        if quantity in WITHOUT_IMAGES:  # the job may be wrong whatever the value: that is its own error
            estimate(spec, resolved_gpu, confidence=confidence, **{**job, **_as_settings(quantity, value_at(1))})
        raise ConfigError(f"{setting('solve', quantity)}: not even {_format(value_at(1))} fits {resolved_gpu.title}")
    settings = {**job, **_as_settings(quantity, value_at(index))}
    settings = settings if quantity in WITHOUT_IMAGES else with_sequence_length(spec, resolved_gpu, settings)
    bounded = estimates.get(index + 1) is not None
    return Solved(quantity, value_at(index), settings, estimate_of_largest, bounded)


def _values(spec: ModelSpec, gpu: Gpu, quantity: str, job: dict[str, Any]) -> Callable[[int], Any]:
    """Index, from 1 on, -> value of the quantity; may change `job`."""
    width, height = job.get("image_size") or (1, 1)

    def size_at(index: int) -> Size:
        long = index * STEP
        short = max(1, round(long * min(width, height) / max(width, height)))
        return Size(long, short) if width >= height else Size(short, long)

    shortest = 0
    if quantity == "seq-len":
        job.pop("sequence_length", None)
        full_job = complete_job(spec, gpu, {**job, "sequence_length": MAX_COUNT})
        image = processed_image(spec, full_job)
        shortest = full_job.pictures * image.all_tokens if image is not None else full_job.prompt_length or 0
    shares = [least_share(spec, gpu, job)] if quantity == "vllm-share" else []
    values: dict[str, Callable[[int], Any]] = {
        "image-size": size_at,
        "max-pixels": lambda index: (ceil_div(_min_pixels(spec, job), STEP * STEP) + index) * STEP * STEP,
        "max-tiles": lambda index: index,
        "seq-len": lambda index: (shortest // LENGTH_STEP + index) * LENGTH_STEP,
        "vllm-share": lambda index: (shares[0] + index - 1) / 100,
    }
    if quantity in ("max-pixels", "max-tiles") and "image_size" not in job:
        job["image_size"] = Size(1 << 13, 1 << 13)  # larger than any limit
    return values[quantity]


def least_share(spec: ModelSpec, gpu: Gpu, job: dict[str, Any]) -> int:
    """The smallest share of the GPU, in hundredths, that vLLM can start with: the smallest for which the job can run.

    Raises:
        ConfigError: for a job in which vLLM is not on the GPUs that train.
    """
    full_job = complete_job(spec, gpu, job)
    if not is_colocated(full_job):
        raise ConfigError(f"{setting('solve', 'vllm-share')} needs {setting('generate_with', 'vllm')} or vllm_sleep")
    return vllm_share.least_share(spec, full_job, gpu)


def _min_pixels(spec: ModelSpec, job: dict[str, Any]) -> int:
    """Pixels that the processor enlarges every image to; max_pixels cannot be less."""
    published = spec.processor.get("min_pixels") or spec.processor.get("size", {}).get("shortest_edge")
    return int(job.get("min_pixels") or published or 0)


def _as_settings(quantity: str, value: Any) -> dict[str, Any]:
    """A value of the quantity as a setting of the job."""
    return {"sequence_length" if quantity == "seq-len" else quantity.replace("-", "_"): value}


def _format(value: Any) -> str:
    return str(value) if isinstance(value, Size) else f"{value:,}"


def _estimate(spec: ModelSpec, gpu: Gpu, confidence: float, job: dict[str, Any]) -> Estimate | None:
    """The estimate; None if the model or its processor refuses the job."""
    try:
        settings = with_sequence_length(spec, gpu, job) if spec.model_type in IMAGE_PROCESSORS else job
        return estimate(spec, gpu, confidence=confidence, **settings)
    except ConfigError:
        return None


def _load(model: str | ModelSpec, gpu: str | Gpu, needs_images: bool = True) -> tuple[ModelSpec, Gpu]:
    gpu = load_gpu(gpu)
    spec = load_model(model)
    if needs_images:
        _check_takes_images(spec)
    return spec, gpu


def _check_takes_images(spec: ModelSpec) -> None:
    if spec.model_type in MODEL_INPUTS and MODEL_INPUTS[spec.model_type].image_config is not None:
        raise ConfigError(
            f"{spec.name}: `images` is for images inside text; `estimate` takes {setting('image_size')} for this model"
        )
    if spec.model_type not in PROCESSORS:
        raise ConfigError(
            f"{spec.name} takes text alone; vision-language models are of type {', '.join(sorted(PROCESSORS))}"
        )


__all__ = ["QUANTITIES", "SIZES", "ImageSizeRow", "Solved", "image_size_table", "process_sizes", "solve"]
