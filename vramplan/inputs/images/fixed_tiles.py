"""Images cut into equal tiles, or resized to one (transformers 5.23, models/*/image_processing_*.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import floor, inf, sqrt

from vramplan.errors import SpecError
from vramplan.inputs.images.types import Limits, ProcessedImage, Processor, Size, Tensor, refuse
from vramplan.inputs.model_spec import Config
from vramplan.units import ceil_div

MAX_SIDE = 1 << 16
"""Pixels of the largest side of a tile."""


def side(value: object) -> int:
    """Pixels of a side from a number or a pair of equal numbers.

    Raises:
        SpecError: for anything else, or a size that no image has.
    """
    number = value[0] if isinstance(value, (list, tuple)) and value else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= MAX_SIDE:
        raise SpecError(f"config.json: a side of {number!r} pixels; expected a whole number from 1 to {MAX_SIDE}")
    return number


@lru_cache(maxsize=64)
def canvases(min_tiles: int, max_tiles: int) -> tuple[tuple[int, int], ...]:
    """(columns, rows) of all canvases with `min_tiles` to `max_tiles` tiles, the smaller ones first."""
    shapes = [
        (columns, rows)
        for columns in range(1, max_tiles + 1)
        for rows in range(1, max_tiles + 1)
        if min_tiles <= columns * rows <= max_tiles
    ]
    return tuple(sorted(shapes, key=lambda canvas: canvas[0] * canvas[1]))


def best_canvas(size: Size, tile: int, min_tiles: int, max_tiles: int) -> tuple[int, int]:
    """(columns, rows) of the canvas whose shape is nearest to the image's (got_ocr2: get_optimal_tiled_canvas).

    Of equally near canvases a larger one is chosen only if the image covers more than half of it.
    """
    ratio, area = size.width / size.height, size.width * size.height
    best, least_difference = (1, 1), float("inf")
    for columns, rows in canvases(min_tiles, max_tiles):
        difference = abs(ratio - columns / rows)
        if difference < least_difference:
            best, least_difference = (columns, rows), difference
        elif difference == least_difference and area > 0.5 * tile * tile * columns * rows:
            best = (columns, rows)
    return best


def internvl(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """InternVL: a canvas of up to 12 tiles of 448 pixels, and a thumbnail if there is more than one.

    Raises:
        ConfigError: for limits that the processor does not have.
    """
    refuse(limits, "internvl", "min_pixels", "max_pixels")
    vision = c.part("vision_config")
    tile, patch = side(vision.get("image_size", 448)), side(vision.get("patch_size", 14))
    max_tiles = limits.max_tiles or p.count("max_patches", 12)
    min_tiles = min(p.count("min_patches", 1), max_tiles)
    columns, rows = best_canvas(size, tile, min_tiles, max_tiles)
    tiles = columns * rows + (columns * rows > 1)
    across = tile // patch
    shrunk = int(across * c.number("downsample_ratio", 0.5))
    description = f"{columns} x {rows} tiles + thumbnail" if tiles > 1 else "1 tile"
    pixels = Tensor("pixel_values", (tiles, 3, tile, tile))
    return ProcessedImage(tiles * shrunk * shrunk, 2, tiles, across, across, (pixels,), description)


def aya_vision(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Aya Vision: InternVL's canvas of tiles; a name in front of each, the marks of an image's start and end."""
    refuse(limits, "aya_vision", "min_pixels", "max_pixels")
    tiled = internvl(c, p, size, limits)
    per_tile = (tiled.rows // c.count("downsample_factor", 2)) ** 2
    return replace(tiled, tokens=tiled.tiles * per_tile, extra_tokens=tiled.tiles + 2)


def no_images(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """The processor of a model that hears.

    Raises:
        SpecError: for any image.
    """
    raise SpecError("the model takes sounds instead of images")


def llava(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """LLaVA 1.5: the central square of the image, at the tower's size.

    Raises:
        ConfigError: for limits that the processor does not have.
    """
    refuse(limits, "llava", "min_pixels", "max_pixels", "max_tiles")
    vision = c.part("vision_config")
    tile, patch = side(vision.get("image_size", 336)), side(vision.get("patch_size", 14))
    across = tile // patch
    keeps_class = c.text("vision_feature_select_strategy", "default") == "full"
    pixels = Tensor("pixel_values", (1, 3, tile, tile))
    return ProcessedImage(
        across * across + keeps_class, 0, 1, across, across, (pixels,), f"{tile} x {tile}, center crop"
    )


def resize_to_square(
    owner: str, tokens: Callable[[Config, int], int], extra: int, square: int = 224, cell: int = 14
) -> Processor:
    """A processor that resizes any image to one square of the tower's size.

    Args:
        owner: The model_type, for messages.
        tokens: (configuration, patches of a side) -> tokens of the image.
        extra: Tokens beside those.
        square: Pixels of a side if the configuration does not say.
        cell: Pixels of a patch's side if the configuration does not say.
    """

    def processor(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
        refuse(limits, owner, "min_pixels", "max_pixels", "max_tiles")
        vision = c.part("vision_config")
        tile, patch = side(vision.get("image_size", square)), side(vision.get("patch_size", cell))
        if tile < patch:
            raise SpecError(f"config.json: image_size {tile} is less than patch_size {patch}")
        across = tile // patch
        pixels = Tensor("pixel_values", (1, 3, tile, tile))
        return ProcessedImage(tokens(c, across), extra, 1, across, across, (pixels,), f"{tile} x {tile}, resized")

    return processor


paligemma = resize_to_square("paligemma", lambda c, across: across * across, 0)
"""PaliGemma: one token per patch; <bos> and a newline belong to the text."""
gemma3n = resize_to_square("gemma3n", lambda c, across: c.count("vision_soft_tokens_per_image", 256), 4, 768, 48)
"""Gemma 3n: 256 tokens between two marker tokens and two empty lines; its convolutions give one feature per 48
pixels."""
_gemma3_view = resize_to_square("gemma3", lambda c, across: c.count("mm_tokens_per_image", 256), 4)
"""Gemma 3 without pan and scan: 256 tokens between two marker tokens and two empty lines."""
CROP_TEXT_TOKENS = 16
"""Tokens of the text around the crops: ``Here is the original image ... and here are some crops to help you see better
...``; a space comes before each crop."""


def gemma3(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Gemma 3; with `max_tiles` pan and scan: crops of a long image in addition, each processed like the full image.

    Only an argument of the call switches pan and scan on: preprocessor_config.json is overruled
    (processing_gemma3.py: images_kwargs) and therefore not read.
    """
    view = _gemma3_view(c, p, size, replace(limits, max_tiles=None))
    crops = count_crops(size, limits.max_tiles) if limits.max_tiles else 0
    if not crops:
        return view
    views, pixels = 1 + crops, view.tensors[0]
    return replace(
        view,
        tokens=views * view.tokens,
        extra_tokens=views * view.extra_tokens + CROP_TEXT_TOKENS + crops,
        tiles=views,
        tensors=(pixels._replace(shape=(views, *pixels.shape[1:])),),
        description=f"{view.description}, and {crops} crops",
        runs=views,
    )


def count_crops(size: Size, max_crops: int, min_side: int = 256, min_ratio: float = 1.2) -> int:
    """Number of crops along the longer side (pan_and_scan_batched); 0 if the image is not long or too small."""
    long, short = max(size), min(size)
    if long / short < min_ratio:
        return 0
    crops = min(max(2, min(long // min_side, floor(long / short + 0.5))), max_crops)
    return 0 if min(ceil_div(long, crops), short) < min_side else crops


def arrangements(max_tiles: int) -> list[tuple[int, int]]:
    """(rows, columns) of up to `max_tiles` tiles, in the order of Llama's ids (get_all_supported_aspect_ratios)."""
    return [(a, b) for a in range(1, max_tiles + 1) for b in range(1, max_tiles + 1) if a * b <= max_tiles]


def mllama(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Llama 3.2 Vision: the canvas that enlarges least or shrinks least; four tiles always enter the tower.

    The text has one token per image; all patches of all tiles and their class tokens are keys of cross-attention.
    """
    refuse(limits, "mllama", "min_pixels", "max_pixels", "max_tiles")
    vision = c.part("vision_config")
    tile, patch = side(vision.get("image_size", 448)), side(vision.get("patch_size", 14))
    max_tiles = most_tiles(vision)
    shapes = arrangements(max_tiles)
    scales = [min(rows * tile / size.height, columns * tile / size.width) for rows, columns in shapes]
    enlarging = [scale for scale in scales if scale >= 1]
    best_scale = min(enlarging) if enlarging else max(scales)
    best_shapes = [shape for shape, scale in zip(shapes, scales, strict=True) if scale == best_scale]
    rows, columns = min(best_shapes, key=lambda shape: shape[0] * shape[1])
    across, used = tile // patch, rows * columns
    tensors = (
        Tensor("pixel_values", (max_tiles, 3, tile, tile), layout="samples"),
        Tensor("aspect_ratio_ids", (), "int64", (shapes.index((rows, columns)) + 1,), "samples"),
        Tensor("aspect_ratio_mask", (max_tiles,), "int64", (1,) * used + (0,) * (max_tiles - used), "samples"),
        Tensor("cross_attention_mask", (max_tiles,), "int64", (1,) * used + (0,) * (max_tiles - used), "tokens"),
    )
    return ProcessedImage(1, 0, max_tiles, across, across, tensors, f"{columns} x {rows} of {max_tiles} tiles")


def most_tiles(vision: Config) -> int:
    """Number of tiles that the vision tower of Llama 3.2 Vision takes, even if the image fills fewer."""
    return vision.count("max_num_tiles", 4)


# -- LLaVA-NeXT, LLaVA-OneVision ---------------------------------------------------------------------------------------


def best_resolution(size: Size, pinpoints: Sequence[Sequence[int]]) -> tuple[int, int]:
    """(height, width) of the canvas that keeps most of the image, then wastes least (select_best_resolution)."""
    best, best_pixels, least_waste = (0, 0), 0, inf
    for height, width in pinpoints:
        shrink = min(width / size.width, height / size.height)
        pixels = min(int(size.width * shrink) * int(size.height * shrink), size.width * size.height)
        waste = width * height - pixels
        if pixels > best_pixels or (pixels == best_pixels and waste < least_waste):
            best, best_pixels, least_waste = (height, width), pixels, waste
    return best


def unpadded(size: Size, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of features that remain after padding is removed (unpad_image)."""
    if size.width / size.height > columns / rows:
        rows -= (rows - int(round(size.height * (columns / size.width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(size.width * (rows / size.height), 7))) // 2 * 2
    return rows, columns


NEXT = tuple((336 * rows, 336 * columns) for rows, columns in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3)))
ONEVISION = tuple((384 * rows, 384 * columns) for rows in range(1, 7) for columns in range(1, 7))
"""Default canvases of transformers' configurations, (height, width) (image_grid_pinpoints)."""


def anyres(
    c: Config, size: Size, limits: Limits, canvases: Sequence[Sequence[int]], max_tiles: int | None = None
) -> ProcessedImage:
    """The resized image, and its tiles on the best canvas; a learned newline embedding ends each row of features.

    Features of more than `max_tiles` tiles are shrunk (anyres_max_9).
    """
    refuse(limits, "llava", "min_pixels", "max_pixels", "max_tiles")
    vision = c.part("vision_config")
    tile, patch = side(vision.get("image_size", 336)), side(vision.get("patch_size", 14))
    across = tile // patch
    height, width = best_resolution(size, c.get("image_grid_pinpoints", canvases))
    down, right = height // tile, width // tile
    rows, columns = unpadded(size, across * down, across * right)
    if max_tiles is not None:
        ratio = sqrt(rows * columns / (max_tiles * across**2))
        if ratio > 1.1:
            rows, columns = int(rows // ratio), int(columns // ratio)
    has_class = vision.text("model_type", "clip_vision_model") == "clip_vision_model" and not max_tiles
    keeps_class = has_class and c.text("vision_feature_select_strategy", "default") == "full"
    overview_tokens = across * across + keeps_class
    tiles = down * right + 1
    tensors = (
        Tensor("pixel_values", (1, tiles, 3, tile, tile)),
        Tensor("image_sizes", (1, 2), "int64", (size.height, size.width)),
    )
    description = f"{right} x {down} tiles + whole"
    return ProcessedImage(
        overview_tokens + rows * (columns + 1), 0, tiles, across, across, tensors, description, (rows, columns)
    )


def llava_next(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """LLaVA 1.6."""
    return anyres(c, size, limits, NEXT)


def llava_onevision(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """LLaVA-OneVision; `anyres_max_9` bounds the features, not the tiles of the tower."""
    return anyres(c, size, limits, ONEVISION, int(c.text("vision_aspect_ratio", "anyres_max_9").rpartition("_")[2]))


# -- Idefics 3, SmolVLM ------------------------------------------------------------------------------------------------


def resize_longest_edge(size: Size, longest: int, max_side: int = 4096) -> Size:
    """The size with its longest side resized to `longest`, the other rounded up to even, both at most `max_side`."""
    ratio = size.width / size.height
    if size.width >= size.height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    width, height = max(width, 1), max(height, 1)
    ratio = width / height
    if width >= height and width > max_side:
        width, height = max_side, int(max_side / ratio)
    elif height > width and height > max_side:
        height, width = max_side, int(max_side * ratio)
    return Size(max(width, 1), max(height, 1))


def idefics3(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Idefics 3, SmolVLM: every image resized to four tiles' width and cut into tiles, and the full image once more.

    Marker tokens surround each view; each tile has a name token, each row of tiles a newline.
    """
    refuse(limits, "idefics3", "min_pixels", "max_pixels", "max_tiles")
    vision = c.part("vision_config")
    tile, patch = side(vision.get("image_size")), side(vision.get("patch_size"))
    across = tile // patch
    per_tile = across**2 // c.count("scale_factor", 2) ** 2
    resized = resize_longest_edge(size, p.get("size", {}).get("longest_edge", 4 * tile))
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
    description = f"{columns} x {rows} tiles + whole" if rows else "1 tile"
    return ProcessedImage(views * per_tile, 3 + 2 * rows * columns + rows, views, across, across, tensors, description)
