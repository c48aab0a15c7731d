"""Processors that come with a model's own code: tokens are counted, the models themselves are not supported.

The rules are those of each repository's processing code; phi3_v, deepseek_vl_v2 and kimi_vl agree with the ports in
mlx-vlm 0.7.10 on 320 to 7,500 sizes, MiniCPM-V's slicing with transformers' MiniCPM-V 4.6 on 60,000.
"""

from __future__ import annotations

from math import ceil, log, sqrt

from vramplan.errors import ConfigError, setting
from vramplan.inputs.images.fixed_tiles import best_resolution
from vramplan.inputs.images.types import Limits, ProcessedImage, Processor, Size, refuse
from vramplan.inputs.model_spec import Config
from vramplan.units import ceil_div


def tokens_only(tokens: int, extra: int, tiles: int, description: str) -> ProcessedImage:
    """An image of which only the tokens are known."""
    return ProcessedImage(tokens, extra, tiles, 0, 0, (), description)


def qwen_vl(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Qwen-VL: one square of 448 pixels, resampled to 256 tokens (visual.py), with a start and an end token."""
    refuse(limits, "qwen", "min_pixels", "max_pixels", "max_tiles")
    visual = c.part("visual")
    tile = visual.count("image_size", 448)
    return tokens_only(visual.count("n_queries", 256), 2, 1, f"1 tile of {tile}")


def phi3_v(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Phi-3-vision, Phi-3.5-vision: scaled to as many tiles of 336 as num_crops allows, 144 tokens per tile.

    A newline token after each row of 12, and a separator between the tiles and the full image, are included
    (image_processing_phi3_v.py). The vision tower always computes num_crops + 1 tiles.

    Raises:
        ConfigError: for an image so flat that a side shrinks to 0.
    """
    refuse(limits, "phi3_v", "min_pixels", "max_pixels")
    crops = limits.max_tiles or p.count("num_crops", 4)
    long, short = max(size), min(size)
    across = max(n for n in range(1, crops + 1) if n * ceil(n / (long / short)) <= crops)
    height = int(across * 336 / (long / short))
    if height < 1:
        raise ConfigError(f"{setting('image_size', size)}: too flat, a side shrinks to 0 pixels")
    down = ceil_div(height, 336)
    rows = down if size.width >= size.height else across
    tokens = (across * down + 1) * 144 + 12 * (rows + 1) + 1
    return tokens_only(tokens, 0, crops + 1, f"{across * down} tiles + whole image")


def deepseek_vl2(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """DeepSeek-VL2: the best of 23 canvases of tiles of 384, a newline after each row, the full image first.

    This holds for one or two images in a sample; three or more are one tile each (processing_deepseek_vl_v2.py).
    """
    refuse(limits, "deepseek_vl_v2", "min_pixels", "max_pixels", "max_tiles")
    canvases = [(width, height) for width, height in c.get("candidate_resolutions", CANDIDATES)]
    tile = min(side for canvas in canvases for side in canvas)
    height, width = best_resolution(size, [(height, width) for width, height in canvases])
    rows, columns = height // tile, width // tile
    side = ceil_div(tile // c.part("vision_config").count("patch_size", 14), 2)
    tokens = side * (side + 1) + 1 + rows * side * (columns * side + 1)
    return tokens_only(tokens, 0, 1 + rows * columns, f"{columns} x {rows} tiles + whole image")


CANDIDATES = tuple(
    (384 * columns, 384 * rows)
    for columns, rows in (
        (1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (4, 1), (2, 2), (1, 5), (5, 1), (1, 6), (6, 1), (2, 3), (3, 2),
        (1, 7), (7, 1), (1, 8), (8, 1), (2, 4), (4, 2), (1, 9), (9, 1), (3, 3),
    )
)  # fmt: skip
"""DeepSeek-VL2's candidate_resolutions, (width, height); of two equally good canvases the first is used."""


def kimi_vl(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """Kimi-VL: shrunk to in_token_limit patches, padded to whole tokens of 28 pixels (image_processing_kimi_vl.py).

    Raises:
        ConfigError: for an image longer than the model's table of positions.
    """
    refuse(limits, "kimi_vl", "min_pixels", "max_pixels", "max_tiles")
    max_patches = p.count("in_token_limit", 4096)
    width, height = size
    patches = (width // 14) * (height // 14)
    if patches > max_patches:
        shrink = sqrt(max_patches / patches)
        width, height = int(width * shrink), int(height * shrink)
    columns, rows = ceil_div(width, 28), ceil_div(height, 28)
    if 2 * max(columns, rows) >= 512:
        raise ConfigError(
            f"{setting('image_size', size)}: {2 * max(columns, rows)} patches in a row, the model has positions for 511"
        )
    return tokens_only(rows * columns, 4, 1, f"{28 * columns} x {28 * rows}")


def minicpmv(c: Config, p: Config, size: Size, limits: Limits, numbered: bool | None = None) -> ProcessedImage:
    """MiniCPM-V 2.5 to 4.5: up to 9 slices and an overview, 96 or 64 tokens each (image_processing_minicpmv.py).

    Marker tokens around each, the image's number (from 2.6 on), and a newline between rows of slices are extra tokens.
    """
    refuse(limits, "minicpmv", "min_pixels", "max_pixels")
    slices = c.part("slice_config") if c.has("slice_config") else p
    max_slices = limits.max_tiles or p.count("max_slice_nums", slices.count("max_slice_nums", 9))
    scale = p.count("scale_resolution", slices.count("scale_resolution", 448))
    tokens_per_view = c.count("query_num", 64)
    numbered = p.flag("use_image_id", tokens_per_view != 96) if numbered is None else numbered
    columns, rows = _slices(size, scale, max_slices)
    cut = columns * rows > 1
    extra = 2 + 3 * numbered + (2 * columns * rows + rows - 1 if cut else 0) + (2 if cut and not numbered else 0)
    views = columns * rows + 1 if cut else 1
    return tokens_only(
        views * tokens_per_view, extra, views, f"{columns} x {rows} slices + overview" if cut else "1 view"
    )


def _slices(size: Size, scale: int, max_slices: int) -> tuple[int, int]:
    """(columns, rows) of about as many slices as the image has squares of `scale` pixels; (1, 1) if it is not cut."""
    num_slices = min(ceil(size.width * size.height / (scale * scale)), max_slices)
    if num_slices <= 1:
        return 1, 1
    shapes = [
        (columns, count // columns)
        for count in (num_slices - 1, num_slices, num_slices + 1)
        if 1 < count <= max_slices
        for columns in range(1, count + 1)
        if count % columns == 0
    ]
    return min(shapes, key=lambda shape: abs(log(size.width / size.height) - log(shape[0] / shape[1])), default=(1, 1))


COUNTED: dict[str, Processor] = {
    "qwen": qwen_vl,
    "phi3_v": phi3_v,
    "deepseek_vl_v2": deepseek_vl2,
    "kimi_vl": kimi_vl,
    "minicpmv": minicpmv,
}
"""Processor by model_type."""
