"""Images cut into tiles whose last ones are partly padding, or into as many as the image fills (transformers 5.23).

For Llama 4, and for Phi-4-multimodal, which the analytic estimator does not support: it is traced.
"""

from __future__ import annotations

from math import ceil, inf
from struct import pack, unpack

from vramplan.errors import ConfigError, setting
from vramplan.inputs.images.fixed_tiles import canvases, side
from vramplan.inputs.images.types import Limits, ProcessedImage, Size, Tensor, refuse
from vramplan.inputs.model_spec import Config
from vramplan.units import ceil_div

MIN_SIDE = 10
"""Least pixels of a scaled side in Phi's processor."""


def single(value: float) -> float:
    """A number rounded to single precision, in which Llama 4's processor compares scales."""
    return float(unpack("f", pack("f", value))[0])


def by_shape(max_tiles: int) -> list[tuple[int, int]]:
    """(rows, columns) of up to `max_tiles` tiles: largest first, by aspect ratio (find_supported_resolutions)."""
    shapes: dict[float, list[tuple[int, int]]] = {}
    for count in range(max_tiles, 0, -1):
        for rows in range(1, count + 1):
            if count % rows == 0:
                shapes.setdefault(rows / (count // rows), []).append((rows, count // rows))
    return [shape for group in shapes.values() for shape in group]


def llama4(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Llama 4: the canvas that enlarges least or shrinks least; with more than one tile, the full image as well.

    Marker tokens surround the image; one follows each tile of a row but the last, one follows each row.
    """
    refuse(limits, "llama4", "min_pixels", "max_pixels")
    vision = c.part("vision_config")
    tile, patch = side(vision.get("image_size", 448)), side(vision.get("patch_size", 14))
    shapes = by_shape(limits.max_tiles or p.count("max_patches", 16))
    scales = [min(single(rows * tile / size.height), single(wide * tile / size.width)) for rows, wide in shapes]
    enlarging = [scale for scale in scales if scale >= 1]
    best_scale = min(enlarging) if enlarging else max(scales)
    best_shapes = [shape for shape, scale in zip(shapes, scales, strict=True) if scale == best_scale]
    rows, columns = min(best_shapes, key=lambda shape: shape[0] * shape[1])
    has_overview, across = rows * columns > 1, tile // patch
    views = rows * columns + has_overview
    tokens = views * int(across**2 * vision.number("pixel_shuffle_ratio", 0.5) ** 2)
    description = f"{columns} x {rows} tiles + whole" if has_overview else "1 tile"
    pixels = Tensor("pixel_values", (views, 3, tile, tile))
    return ProcessedImage(tokens, 3 + rows * columns * has_overview, views, across, across, (pixels,), description)


def phi_canvas(size: Size, tile: int, max_tiles: int) -> tuple[int, int]:
    """(columns, rows) of tiles that cover the image; above `max_tiles`, the canvas of nearest shape."""
    columns, rows = ceil(size.width / tile), ceil(size.height / tile)
    if columns * rows <= max_tiles:
        return columns, rows
    ratio, best, least_difference = size.width / size.height, (1, 1), inf
    for wide, high in canvases(1, max_tiles):
        difference = abs(ratio - wide / high)
        if difference < least_difference:
            best, least_difference = (wide, high), difference
        elif difference == least_difference and size.width * size.height > 0.5 * tile * tile * wide * high:
            best = (wide, high)
    return best


def phi4(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Phi-4-multimodal: scaled into a canvas, padded right and below; features of padding alone are removed.

    Features are 2 x 2 patches; a newline ends each row of the full image and of the tiles, a separator parts the two.

    Raises:
        ConfigError: for limits that the processor does not have, or an image so flat that a scaled side has fewer than
            MIN_SIDE pixels.
    """
    refuse(limits, "phi4_multimodal", "min_pixels", "max_pixels")
    vision = c.part("vision_config")
    tile, patch = side(vision.get("crop_size", 448)), side(vision.get("patch_size", 14))
    columns, rows = phi_canvas(size, tile, limits.max_tiles or p.count("dynamic_hd", 36))
    width, height = tile * columns, tile * rows
    across, down = width / size.width, height / size.height
    used = (width, int(size.height * across)) if across < down else (int(size.width * down), height)
    if min(used) < MIN_SIDE:
        raise ConfigError(f"{setting('image_size', size)}: too flat, scaled to {used[0]} x {used[1]} pixels")
    patches = tile // patch
    wide, high = (
        patches * tiles - (canvas_side - used_side) // patch
        for tiles, canvas_side, used_side in zip((columns, rows), (width, height), used, strict=True)
    )
    feature_rows, feature_columns, square = ceil_div(high, 2), ceil_div(wide, 2), patches // 2
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
        # fp32 in transformers; int64 here, because a trace knows the values of integers alone and the model sums them
        Tensor("image_attention_mask", (1, views, patches, patches), "int64", mask),
    )
    tokens = square * (square + 1) + 1 + feature_rows * (feature_columns + 1)
    description = f"{columns} x {rows} tiles + whole"
    return ProcessedImage(tokens, 0, views, patches, patches, tensors, description)
