"""Images cut into tiles whose last ones are partly padding, or into as many as the image fills (transformers 5.23).

Llama 4 and Phi-4-multimodal: models that are traced, not described.
"""

from __future__ import annotations

from math import ceil, inf
from struct import pack, unpack

from vramplan.errors import ConfigError, setting
from vramplan.inputs.images.fixed_tiles import canvases, side
from vramplan.inputs.images.types import Limits, ProcessedImage, Size, Tensor, refuse
from vramplan.inputs.model_spec import Config
from vramplan.units import ceil_div

LEAST_SIDE = 10
"""Pixels that Phi's processor wants of a scaled side."""


def single(value: float) -> float:
    """A number in single precision, in which Llama 4's processor compares scales."""
    return float(unpack("f", pack("f", value))[0])


def by_shape(most: int) -> list[tuple[int, int]]:
    """(rows, columns) of up to `most` tiles: largest first, equal shapes together (find_supported_resolutions)."""
    shapes: dict[float, list[tuple[int, int]]] = {}
    for count in range(most, 0, -1):
        for rows in range(1, count + 1):
            if count % rows == 0:
                shapes.setdefault(rows / (count // rows), []).append((rows, count // rows))
    return [one for group in shapes.values() for one in group]


def llama4(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Llama 4: the canvas that enlarges least or shrinks least, and the whole image beside more than one tile.

    Marks around, one behind each tile of a row but the last, one behind each row.
    """
    refuse(limits, "llama4", "min_pixels", "max_pixels")
    vision = c.part("vision_config")
    tile, patch = side(vision.get("image_size", 448)), side(vision.get("patch_size", 14))
    found = by_shape(limits.max_tiles or p.count("max_patches", 16))
    scales = [min(single(rows * tile / size.height), single(wide * tile / size.width)) for rows, wide in found]
    enlarging = [scale for scale in scales if scale >= 1]
    wanted = min(enlarging) if enlarging else max(scales)
    fitting = [one for one, scale in zip(found, scales, strict=True) if scale == wanted]
    rows, columns = min(fitting, key=lambda one: one[0] * one[1])
    many, across = rows * columns > 1, tile // patch
    views = rows * columns + many
    tokens = views * int(across**2 * vision.number("pixel_shuffle_ratio", 0.5) ** 2)
    said = f"{columns} x {rows} tiles + whole" if many else "1 tile"
    pixels = Tensor("pixel_values", (views, 3, tile, tile))
    return ProcessedImage(tokens, 3 + rows * columns * many, views, across, across, (pixels,), said)


def phi_canvas(size: Size, tile: int, most: int) -> tuple[int, int]:
    """(columns, rows) of tiles that cover the image; of more than `most`, the canvas of the nearest shape."""
    columns, rows = ceil(size.width / tile), ceil(size.height / tile)
    if columns * rows <= most:
        return columns, rows
    ratio, best, least_difference = size.width / size.height, (1, 1), inf
    for wide, high in canvases(1, most):
        difference = abs(ratio - wide / high)
        if difference < least_difference:
            best, least_difference = (wide, high), difference
        elif difference == least_difference and size.width * size.height > 0.5 * tile * tile * wide * high:
            best = (wide, high)
    return best


def phi4(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Phi-4-multimodal: scaled into a canvas, padded right and below; features of padding alone are cut off.

    Features are 2 x 2 patches; each row of the whole image and of the tiles has an end, one mark parts the two.

    Raises:
        ConfigError: for limits that it does not have, or an image so flat that little of a side is left.
    """
    refuse(limits, "phi4_multimodal", "min_pixels", "max_pixels")
    vision = c.part("vision_config")
    tile, patch = side(vision.get("crop_size", 448)), side(vision.get("patch_size", 14))
    columns, rows = phi_canvas(size, tile, limits.max_tiles or p.count("dynamic_hd", 36))
    width, height = tile * columns, tile * rows
    across, down = width / size.width, height / size.height
    used = (width, int(size.height * across)) if across < down else (int(size.width * down), height)
    if min(used) < LEAST_SIDE:
        raise ConfigError(f"{setting('image_size', size)}: too flat, scaled to {used[0]} x {used[1]} pixels")
    patches = tile // patch
    wide, high = (
        patches * n - (whole - part) // patch
        for n, whole, part in zip((columns, rows), (width, height), used, strict=True)
    )
    kept_rows, kept_columns, square = ceil_div(high, 2), ceil_div(wide, 2), patches // 2
    views = 1 + columns * rows
    mask = (1,) * patches**2 + tuple(
        int(row * patches + y < high and column * patches + x < wide)
        for row in range(rows)
        for column in range(columns)
        for y in range(patches)
        for x in range(patches)
    )
    tensors = (
        Tensor("image_pixel_values", (1, views, 3, tile, tile)),
        Tensor("image_sizes", (1, 2), "int64", (height, width)),
        # fp32 there: a trace knows whole numbers alone, and the model counts in it
        Tensor("image_attention_mask", (1, views, patches, patches), "int64", mask),
    )
    tokens = square * (square + 1) + 1 + kept_rows * (kept_columns + 1)
    said = f"{columns} x {rows} tiles + whole"
    return ProcessedImage(tokens, 0, views, patches, patches, tensors, said)
