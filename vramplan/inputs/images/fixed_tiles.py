"""Images cut into equal tiles, or squeezed into one (transformers 5.23, models/*/image_processing_*.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import floor, inf, sqrt

from vramplan.inputs.images.types import Limits, ProcessedImage, Processor, Size, Tensor, refuse
from vramplan.inputs.model_spec import Config
from vramplan.units import ceil_div


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


def internvl(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
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
    said = f"{columns} x {rows} tiles + thumbnail" if tiles > 1 else "1 tile"
    pixels = Tensor("pixel_values", (tiles, 3, tile, tile))
    return ProcessedImage(tiles * shrunk * shrunk, 2, tiles, across, across, (pixels,), said)


def llava(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
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
    return ProcessedImage(
        across * across + keeps_class, 0, 1, across, across, (pixels,), f"{tile} x {tile}, its middle"
    )


def squeezed(
    owner: str, tokens: Callable[[Config, int], int], extra: int, square: int = 224, cell: int = 14
) -> Processor:
    """A processor that squeezes any image into one square of the tower's size, `square` where that says none."""

    def processor(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
        refuse(limits, owner, "min_pixels", "max_pixels", "max_tiles")
        vision = c.part("vision_config")
        tile, patch = side(vision.get("image_size", square)), side(vision.get("patch_size", cell))
        across = tile // patch
        pixels = Tensor("pixel_values", (1, 3, tile, tile))
        return ProcessedImage(tokens(c, across), extra, 1, across, across, (pixels,), f"{tile} x {tile}, squeezed")

    return processor


paligemma = squeezed("paligemma", lambda c, across: across * across, 0)
"""PaliGemma: a token for each patch; <bos> and a line's end belong to the text."""
gemma3n = squeezed("gemma3n", lambda c, across: c.count("vision_soft_tokens_per_image", 256), 4, 768, 48)
"""Gemma 3n: 256 tokens between two marks and two empty lines; 48 pixels a feature of its convolutions."""
one_view = squeezed("gemma3", lambda c, across: c.count("mm_tokens_per_image", 256), 4)
"""Gemma 3 without pan and scan: 256 tokens between two marks and two empty lines."""
AROUND_CROPS = 16
"""``Here is the original image ... and here are some crops to help you see better ...``; a space before each crop."""


def gemma3(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Gemma 3; with --max-tiles pan and scan: a long image in parts as well, each like the whole, behind some words.

    Only a call switches that on: what preprocessor_config.json says is overruled (processing_gemma3.py:
    images_kwargs), so that nothing of it is read.
    """
    whole = one_view(c, p, size, replace(limits, max_tiles=None))
    crops = panned(size, limits.max_tiles) if limits.max_tiles else 0
    if not crops:
        return whole
    views, pixels = 1 + crops, whole.tensors[0]
    return replace(
        whole,
        tokens=views * whole.tokens,
        extra_tokens=views * whole.extra_tokens + AROUND_CROPS + crops,
        tiles=views,
        tensors=(pixels._replace(shape=(views, *pixels.shape[1:])),),
        said=f"{whole.said}, and {crops} crops",
        runs=views,
    )


def panned(size: Size, most: int, least: int = 256, ratio: float = 1.2) -> int:
    """Crops along the longer side (pan_and_scan_batched); 0 for an image that is not long, or too small for two."""
    long, short = max(size), min(size)
    if long / short < ratio:
        return 0
    crops = min(max(2, min(long // least, floor(long / short + 0.5))), most)
    return 0 if min(ceil_div(long, crops), short) < least else crops


def arrangements(most: int) -> list[tuple[int, int]]:
    """(rows, columns) of up to `most` tiles, in the order of Llama's ids (get_all_supported_aspect_ratios)."""
    return [(a, b) for a in range(1, most + 1) for b in range(1, most + 1) if a * b <= most]


def mllama(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Llama 3.2 Vision: the canvas that enlarges least or shrinks least; always four tiles go through the tower.

    The text has one token for it; all patches of all tiles and their class tokens are keys of cross-attention.
    """
    refuse(limits, "mllama", "min_pixels", "max_pixels", "max_tiles")
    vision = c.part("vision_config")
    tile, patch, most = side(vision.get("image_size", 448)), side(vision.get("patch_size", 14)), most_tiles(vision)
    found = arrangements(most)
    scales = [min(rows * tile / size.height, columns * tile / size.width) for rows, columns in found]
    enlarging = [scale for scale in scales if scale >= 1]
    wanted = min(enlarging) if enlarging else max(scales)
    rows, columns = min(
        (one for one, scale in zip(found, scales, strict=True) if scale == wanted), key=lambda one: one[0] * one[1]
    )
    across, used = tile // patch, rows * columns
    tensors = (
        Tensor("pixel_values", (most, 3, tile, tile), layout="samples"),
        Tensor("aspect_ratio_ids", (), "int64", (found.index((rows, columns)) + 1,), "samples"),
        Tensor("aspect_ratio_mask", (most,), "int64", (1,) * used + (0,) * (most - used), "samples"),
        Tensor("cross_attention_mask", (most,), "int64", (1,) * used + (0,) * (most - used), "tokens"),
    )
    return ProcessedImage(1, 0, most, across, across, tensors, f"{columns} x {rows} of {most} tiles")


def most_tiles(vision: Config) -> int:
    """Tiles that a tower of Llama 3.2 Vision takes, whatever the image fills."""
    return vision.count("max_num_tiles", 4)


# -- LLaVA-NeXT, LLaVA-OneVision ---------------------------------------------------------------------------------------


def best_resolution(size: Size, pinpoints: Sequence[Sequence[int]]) -> tuple[int, int]:
    """(height, width) of the canvas that keeps most of the image, then wastes least (select_best_resolution)."""
    best, most, least = (0, 0), 0, inf
    for height, width in pinpoints:
        shrink = min(width / size.width, height / size.height)
        kept = min(int(size.width * shrink) * int(size.height * shrink), size.width * size.height)
        waste = width * height - kept
        if kept > most or (kept == most and waste < least):
            best, most, least = (height, width), kept, waste
    return best


def unpadded(size: Size, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of features that are left where the canvas was padding (unpad_image)."""
    if size.width / size.height > columns / rows:
        rows -= (rows - int(round(size.height * (columns / size.width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(size.width * (rows / size.height), 7))) // 2 * 2
    return rows, columns


NEXT = tuple((336 * rows, 336 * columns) for rows, columns in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3)))
ONEVISION = tuple((384 * rows, 384 * columns) for rows in range(1, 7) for columns in range(1, 7))
"""Canvases, height first, that transformers' configurations have by default (image_grid_pinpoints)."""


def anyres(
    c: Config, size: Size, limits: Limits, canvases: Sequence[Sequence[int]], most_tiles: int | None = None
) -> ProcessedImage:
    """The whole image once, and once more in tiles on the best canvas; a learned end behind each row of features.

    Above `most_tiles` tiles' worth of features they are shrunk (anyres_max_9).
    """
    refuse(limits, "llava", "min_pixels", "max_pixels", "max_tiles")
    vision = c.part("vision_config")
    tile, patch = side(vision.get("image_size", 336)), side(vision.get("patch_size", 14))
    across = tile // patch
    height, width = best_resolution(size, c.get("image_grid_pinpoints", canvases))
    down, right = height // tile, width // tile
    rows, columns = unpadded(size, across * down, across * right)
    if most_tiles is not None:
        ratio = sqrt(rows * columns / (most_tiles * across**2))
        if ratio > 1.1:
            rows, columns = int(rows // ratio), int(columns // ratio)
    whole = across * across + (c.text("vision_feature_select_strategy", "default") == "full" and not most_tiles)
    tiles = down * right + 1
    tensors = (
        Tensor("pixel_values", (1, tiles, 3, tile, tile)),
        Tensor("image_sizes", (1, 2), "int64", (size.height, size.width)),
    )
    said = f"{right} x {down} tiles + whole"
    return ProcessedImage(whole + rows * (columns + 1), 0, tiles, across, across, tensors, said, (rows, columns))


def llava_next(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """LLaVA 1.6."""
    return anyres(c, size, limits, NEXT)


def llava_onevision(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """LLaVA-OneVision; `anyres_max_9` bounds the features, not the tiles of the tower."""
    return anyres(c, size, limits, ONEVISION, int(c.text("vision_aspect_ratio", "anyres_max_9").rpartition("_")[2]))


# -- Idefics 3, SmolVLM ------------------------------------------------------------------------------------------------


def on_longest_edge(size: Size, longest: int, most: int = 4096) -> Size:
    """Enlarged or shrunk to `longest`, the other side made even, then to `most` at most."""
    ratio = size.width / size.height
    if size.width >= size.height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    width, height = max(width, 1), max(height, 1)
    ratio = width / height
    if width >= height and width > most:
        width, height = most, int(most / ratio)
    elif height > width and height > most:
        height, width = most, int(most * ratio)
    return Size(max(width, 1), max(height, 1))


def idefics3(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Idefics 3, SmolVLM: every image enlarged to four tiles' width, cut up, and once more as a whole.

    Each view stands between marks; each tile has a name, each row of tiles an end.
    """
    refuse(limits, "idefics3", "min_pixels", "max_pixels", "max_tiles")
    vision = c.part("vision_config")
    tile, patch = side(vision.get("image_size")), side(vision.get("patch_size"))
    across = tile // patch
    per_tile = across**2 // c.count("scale_factor", 2) ** 2
    resized = on_longest_edge(size, p.get("size", {}).get("longest_edge", 4 * tile))
    ratio = resized.width / resized.height
    if resized.width >= resized.height:
        width = ceil_div(resized.width, tile) * tile
        height = ceil_div(int(width / ratio), tile) * tile
    else:
        height = ceil_div(resized.height, tile) * tile
        width = ceil_div(int(height * ratio), tile) * tile
    rows, columns = (height // tile, width // tile) if height > tile or width > tile else (0, 0)
    views = rows * columns + 1
    tensors = (
        Tensor("pixel_values", (1, views, 3, tile, tile)),
        Tensor("pixel_attention_mask", (1, views, tile, tile), "int64"),
    )
    said = f"{columns} x {rows} tiles + whole" if rows else "1 tile"
    return ProcessedImage(views * per_tile, 3 + 2 * rows * columns + rows, views, across, across, tensors, said)
