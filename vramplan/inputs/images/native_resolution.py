"""Images that keep their aspect ratio: sides rounded to whole patches, within a range of pixels (Qwen-VL, GLM-4.1V)."""

from __future__ import annotations

from math import ceil, floor, sqrt

from vramplan.errors import ConfigError, setting
from vramplan.inputs.images.types import Limits, ProcessedImage, Size, Tensor, refuse
from vramplan.inputs.model_spec import Config

MAX_RATIO = 200
"""Longest to shortest side; smart_resize refuses larger ratios."""


def at_least(size: Size, factor: int) -> Size:
    """The size enlarged until both sides have at least `factor` pixels."""
    if min(size) >= factor:
        return size
    enlarge = max(factor / size.height, factor / size.width)
    return Size(int(size.width * enlarge), int(size.height * enlarge))


def smart_resize(size: Size, factor: int, min_pixels: int, max_pixels: int, frames: int = 1, step: int = 1) -> Size:
    """Both sides as multiples of `factor`, with nearly the same aspect ratio (transformers' smart_resize).

    All frames together have `min_pixels` to `max_pixels` pixels: the comparison uses `frames` rounded to a multiple of
    `step`, the scale uses `frames` itself.

    Raises:
        ConfigError: for an image more than 200 times as long as wide.
    """
    width, height = size
    if max(size) / min(size) > MAX_RATIO:
        raise ConfigError(
            f"{setting('image_size', (width, height))}: one side is {max(size) / min(size):.0f} times the other,"
            f" the processor takes {MAX_RATIO} at most"
        )
    rounded = [round(side / factor) * factor for side in size]
    rounded_frames = round(frames / step) * step
    if rounded_frames * rounded[0] * rounded[1] > max_pixels:
        shrink = sqrt((frames * height * width) / max_pixels)
        rounded = [max(factor, floor(side / shrink / factor) * factor) for side in size]
    elif rounded_frames * rounded[0] * rounded[1] < min_pixels:
        grow = sqrt(min_pixels / (frames * height * width))
        rounded = [ceil(side * grow / factor) * factor for side in size]
    return Size(*rounded)


def pixel_range(p: Config, limits: Limits, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(least, most) pixels: the user's, else the model's (either spelling), else `min_pixels` and `max_pixels`.

    Raises:
        ConfigError: if the least is more than the most, or the most is less than one token.
    """
    size = p.get("size", {})
    min_pixels = limits.min_pixels or p.get("min_pixels") or size.get("shortest_edge") or min_pixels
    max_pixels = limits.max_pixels or p.get("max_pixels") or size.get("longest_edge") or max_pixels
    if max_pixels < factor * factor:
        raise ConfigError(
            f"{setting('max_pixels', max_pixels)}: one token alone takes {factor} x {factor} = {factor * factor} pixels"
        )
    if min_pixels > max_pixels:
        raise ConfigError(
            f"{setting('min_pixels', min_pixels)} is more than {setting('max_pixels', max_pixels)}: swapped?"
        )
    return min_pixels, max_pixels


def grid(
    c: Config,
    p: Config,
    size: Size,
    limits: Limits,
    patch: int,
    min_pixels: int,
    max_pixels: int,
    counts_frames: bool = False,
) -> ProcessedImage:
    """The grid of patches, merged 2 x 2 into tokens; each patch repeats the image `temporal_patch_size` times.

    With `counts_frames` the limits count each repetition, and sides below one token are enlarged first (GLM-4.1V).
    """
    refuse(limits, "this model", "max_tiles")
    vision = c.part("vision_config")
    patch, merge = vision.count("patch_size", patch), vision.count("spatial_merge_size", 2)
    temporal, factor = vision.count("temporal_patch_size", 2), patch * merge
    min_pixels, max_pixels = pixel_range(p, limits, factor, min_pixels, max_pixels)
    if counts_frames:
        size = at_least(size, factor)
    resized = smart_resize(size, factor, min_pixels, max_pixels, temporal if counts_frames else 1)
    rows, columns = resized.height // patch, resized.width // patch
    tensors = (
        Tensor("pixel_values", (rows * columns, 3 * temporal * patch * patch)),
        Tensor("image_grid_thw", (1, 3), "int64", (1, rows, columns)),
    )
    return ProcessedImage(rows * columns // merge**2, 2, 1, rows, columns, tensors, str(resized))


def qwen2_vl(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Qwen2-VL and 2.5-VL: 28 pixels per token; the class allows 1280 tokens, the published models 16,384."""
    return grid(c, p, size, limits, 14, 56 * 56, 28 * 28 * 1280)


def qwen3_vl(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Qwen3-VL: 32 pixels per token; the class is Qwen2-VL's, the published models allow 16 million pixels."""
    return grid(c, p, size, limits, 16, 56 * 56, 28 * 28 * 1280)


def glm4v(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """GLM-4.1V: like Qwen2-VL, but the limits count an image as two frames, and small sides are enlarged first."""
    return grid(c, p, size, limits, 14, 112 * 112, 28 * 28 * 15000, counts_frames=True)


def gemma4(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Gemma 4: scaled up or down to as many tokens of 48 pixels as the budget holds; the tower is always padded to it.

    Raises:
        ConfigError: for limits that the processor does not have, or a size that the budget cannot hold.
    """
    refuse(limits, "gemma4", "min_pixels", "max_pixels", "max_tiles")
    vision = c.part("vision_config")
    patch, pool = vision.count("patch_size", 16), vision.count("pooling_kernel_size", 3)
    budget = p.count("max_soft_tokens", c.count("vision_soft_tokens_per_image", 280))
    step, max_patches = patch * pool, budget * pool**2
    factor = sqrt(max_patches * patch**2 / (size.height * size.width))
    rows, columns = (floor(factor * side / step) for side in (size.height, size.width))
    if not rows:
        rows, columns = 1, min(floor(size.width / size.height), budget)
    elif not columns:
        rows, columns = min(floor(size.height / size.width), budget), 1
    if not 0 < rows * columns <= budget:
        raise ConfigError(f"{setting('image_size', size)}: the processor cannot turn it into {budget} tokens")
    high, wide = rows * pool, columns * pool
    positions = [position for y in range(high) for x in range(wide) for position in (x, y)]
    tensors = (
        Tensor("pixel_values", (1, max_patches, 3 * patch**2)),
        Tensor(
            "image_position_ids", (1, max_patches, 2), "int64", (*positions, *[-1] * (2 * max_patches - len(positions)))
        ),
    )
    return ProcessedImage(rows * columns, 2, 1, high, wide, tensors, str(Size(columns * step, rows * step)))


def pixtral(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Pixtral, Mistral Small 3.1: shrunk to the longest edge; a marker token ends each row of tokens.

    Raises:
        ConfigError: for limits that the processor does not have, or an image so flat that a side shrinks to 0.
    """
    refuse(limits, "pixtral", "min_pixels", "max_pixels", "max_tiles")
    vision = c.part("vision_config")
    patch, merge = vision.count("patch_size", 16), c.count("spatial_merge_size", 1)
    longest = p.get("size", {}).get("longest_edge", vision.count("image_size", 1024))
    width, height = size
    ratio = max(height / longest, width / longest)
    if ratio > 1:
        width, height = floor(width / ratio), floor(height / ratio)
    step = patch * merge
    rows, columns = ((side - 1) // step + 1 for side in (height, width))
    if rows < 1 or columns < 1:
        raise ConfigError(
            f"{setting('image_size', size)}: too flat; at a longest side of {longest} the other shrinks to 0 pixels"
        )
    resized = Size(columns * step, rows * step)
    tensors = (
        Tensor("pixel_values", (1, 3, resized.height, resized.width)),
        Tensor("image_sizes", (1, 2), "int64", (resized.height, resized.width)),
    )
    return ProcessedImage(rows * columns, rows, 1, rows * merge, columns * merge, tensors, str(resized))
