"""Images cut into equal tiles, or squeezed into one (transformers 5.23, models/*/image_processing_*.py)."""

from __future__ import annotations

from functools import lru_cache

from vramplan.errors import ConfigError
from vramplan.images.picture import Limits, Picture, Size, Tensor, refuse
from vramplan.spec import Config


def side(value: object) -> int:
    """A size given as a number or as a pair of equal ones."""
    if isinstance(value, (list, tuple)):
        value = value[0]
    assert isinstance(value, int)
    return value


@lru_cache(maxsize=64)
def canvases(least: int, most: int) -> tuple[tuple[int, int], ...]:
    """(columns, rows) of all canvases with `least` to `most` tiles, the smaller ones first."""
    found = [(w, h) for w in range(1, most + 1) for h in range(1, most + 1) if least <= w * h <= most]
    return tuple(sorted(found, key=lambda canvas: canvas[0] * canvas[1]))


def best_canvas(size: Size, tile: int, least: int, most: int) -> tuple[int, int]:
    """Columns and rows of the canvas whose shape is nearest to the image's (got_ocr2: get_optimal_tiled_canvas).

    Of equally near ones a larger one is taken only if the image covers more than half of it.
    """
    ratio, area = size.width / size.height, size.width * size.height
    best, least_difference = (1, 1), float("inf")
    for columns, rows in canvases(least, most):
        difference = abs(ratio - columns / rows)
        if difference < least_difference:
            best, least_difference = (columns, rows), difference
        elif difference == least_difference and area > 0.5 * tile * tile * columns * rows:
            best = (columns, rows)
    return best


def internvl(c: Config, p: Config, size: Size, limits: Limits) -> Picture:
    """InternVL: a canvas of up to 12 tiles of 448 pixels, and a thumbnail where there is more than one.

    Raises:
        ConfigError: for limits that it does not have.
    """
    refuse(limits, "internvl", "min_pixels", "max_pixels")
    vision = c.part("vision_config")
    tile, patch = side(vision.get("image_size", 448)), side(vision.get("patch_size", 14))
    most = limits.max_tiles or p.count("max_patches", 12)
    least = min(p.count("min_patches", 1), most)
    columns, rows = best_canvas(size, tile, least, most)
    tiles = columns * rows + (columns * rows > 1)
    across = tile // patch
    shrunk = int(across * c.number("downsample_ratio", 0.5))
    said = f"{columns} x {rows} tiles of {tile} pixels" + (" and a thumbnail" if tiles > 1 else "")
    pixels = Tensor("pixel_values", (tiles, 3, tile, tile))
    return Picture(tiles * shrunk * shrunk, 2, tiles, across, across, (pixels,), said)


def llava(c: Config, p: Config, size: Size, limits: Limits) -> Picture:
    """LLaVA 1.5: one square of the tower's size, the middle of the image.

    Raises:
        ConfigError: for limits that it does not have.
    """
    refuse(limits, "llava", "min_pixels", "max_pixels", "max_tiles")
    vision = c.part("vision_config")
    tile, patch = side(vision.get("image_size", 336)), side(vision.get("patch_size", 14))
    across = tile // patch
    keeps_class = c.text("vision_feature_select_strategy", "default") == "full"
    pixels = Tensor("pixel_values", (1, 3, tile, tile))
    return Picture(across * across + keeps_class, 0, 1, across, across, (pixels,), f"its middle at {tile} pixels")


def too_many(what: str, size: Size) -> ConfigError:
    """An image that the processor refuses."""
    return ConfigError(f"--image-size {size.width}x{size.height}: {what}")
