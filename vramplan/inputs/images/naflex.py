"""LFM2-VL's images: patches of one image, or of tiles and a thumbnail, padded to equal numbers (transformers 5.23)."""

from __future__ import annotations

from math import ceil, floor, sqrt

from vramplan.inputs.images.fixed_tiles import best_canvas
from vramplan.inputs.images.types import Limits, ProcessedImage, Size, Tensor, refuse
from vramplan.inputs.model_spec import Config


def lfm2_vl(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Lfm2VlImageProcessor: an image of 64 to 256 tokens; twice as large a one is cut into tiles besides.

    Raises:
        ConfigError: for limits that the processor does not have.
    """
    refuse(limits, "lfm2_vl", "min_pixels", "max_pixels")
    patch, factor = p.count("encoder_patch_size", 16), p.count("downsample_factor", 2)
    least, most, tile = p.count("min_image_tokens", 64), p.count("max_image_tokens", 256), p.count("tile_size", 512)
    cell, across = patch * factor, tile // patch
    whole = resized(size, cell, least * cell**2, most * cell**2)
    max_tiles = limits.max_tiles or p.count("max_tiles", 10)
    splits = p.flag("do_image_splitting", True) and max_tiles > 1
    area = max(patch, round(size.width / cell) * cell) * max(patch, round(size.height / cell) * cell)
    tiles = (1, 1)
    if splits and area > most * cell**2 * p.number("max_pixels_tolerance", 2.0):
        tiles = best_canvas(size, tile, min(p.count("min_tiles", 2), max_tiles), max_tiles)
    columns, rows = tiles
    is_cut = columns * rows > 1
    grids = [(across, across)] * (columns * rows) if is_cut else []
    if not is_cut or p.flag("use_thumbnail", True):
        grids.append((whole.height // patch, whole.width // patch))
    patches = max(most * factor**2, across**2 if p.flag("do_image_splitting", True) else 0)
    tokens = sum(ceil(one / factor) * ceil(other / factor) for one, other in grids)
    used = tuple(int(number < one * other) for one, other in grids for number in range(patches))
    tensors = (
        Tensor("pixel_values", (len(grids), patches, 3 * patch * patch)),
        Tensor("pixel_attention_mask", (len(grids), patches), "int64", used),
        Tensor("spatial_shapes", (len(grids), 2), "int64", tuple(number for grid in grids for number in grid)),
    )
    description = f"{columns} x {rows} tiles + thumbnail" if is_cut else f"{whole} as {grids[-1][0]} x {grids[-1][1]}"
    marks = 2 + is_cut * len(grids)
    return ProcessedImage(tokens, marks, len(grids), across, across, tensors, description, features=grids[-1])


def resized(size: Size, cell: int, least: int, most: int) -> Size:
    """Both sides as multiples of `cell`, with `least` to `most` pixels (smart_resize)."""
    width, height = (max(cell, round(side / cell) * cell) for side in size)
    if width * height > most:
        shrink = sqrt(size.width * size.height / most)
        width, height = (max(cell, floor(side / shrink / cell) * cell) for side in size)
    elif width * height < least:
        grow = sqrt(least / (size.width * size.height))
        width, height = (ceil(side * grow / cell) * cell for side in size)
    return Size(width, height)
