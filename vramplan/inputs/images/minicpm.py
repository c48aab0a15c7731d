"""MiniCPM-V 4.6's and 4.7's images: an overview and slices, all in their own proportions (transformers 5.23)."""

from __future__ import annotations

from math import ceil, inf, log, sqrt

from vramplan.inputs.images.types import Limits, ProcessedImage, Size, Tensor, refuse
from vramplan.inputs.model_spec import Config

FINE = "4x"
"""The `downsample_mode` that merges patches once, and not twice."""


def minicpmv(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
    """MiniCPMV4_6ImageProcessor and MiniCPMV4_6Processor.replace_image_token.

    Marks surround the overview and each slice, a newline ends each row of slices but the last, and three tokens give
    the image's number.

    Raises:
        ConfigError: for limits that the processor does not have.
    """
    refuse(limits, c.text("model_type", "minicpmv4_6"), "min_pixels", "max_pixels")
    scale, patch = p.count("scale_resolution", 448), p.count("patch_size", 14)
    merged = 2 if c.text("downsample_mode", "16x") == FINE else 4
    most = limits.max_tiles or p.count("max_slice_nums", 9)
    rows, columns = _slices(size, scale, most) if p.flag("slice_mode", True) else (0, 0)
    overview = _resized(size.width, size.height, scale, patch * merged, enlarges=not rows)
    grids = [overview]
    if rows:
        width, height = (_rounded(side, number) / number for side, number in zip(size, (columns, rows), strict=True))
        grids += [_resized(width, height, scale, patch * merged, enlarges=True)] * (rows * columns)
    in_patches = [(one.height // patch, one.width // patch) for one in grids]
    patches = sum(high * wide for high, wide in in_patches)
    tensors = (
        Tensor("pixel_values", (1, 3, patch, patch * patches), layout="columns"),
        Tensor("target_sizes", (len(grids), 2), "int64", tuple(number for grid in in_patches for number in grid)),
    )
    marks = 2 * len(grids) + max(0, rows - 1) + 3 * p.flag("use_image_id", True)
    whole = f"overview of {overview}"
    return ProcessedImage(
        patches // merged**2,
        marks,
        len(grids),
        *in_patches[-1],
        tensors,
        f"{columns} x {rows} slices of {grids[-1]} + {whole}" if rows else whole,
        features=in_patches[0],
        run_lengths=tuple(high * wide // merged**2 for high, wide in in_patches),
    )


def _slices(size: Size, scale: int, most: int) -> tuple[int, int]:
    """Rows and columns of about as many slices as the image has squares of `scale` pixels; (0, 0) if it is not cut."""
    number = min(ceil(size.width * size.height / scale**2), most)
    if number <= 1:
        return 0, 0
    shape, least = (1, 1), inf
    for count in (number - 1, number, number + 1):
        if count == 1 or count > most:
            continue
        for rows in (one for one in range(1, count + 1) if count % one == 0):
            error = abs(log(size.width / size.height) - log(count // rows / rows))
            if error < least or (error == least and rows > shape[0]):
                shape, least = (rows, count // rows), error
    return shape


def _resized(width: float, height: float, scale: int, cell: int, enlarges: bool) -> Size:
    """About `scale` x `scale` pixels in the same proportions, if there are more or it `enlarges`; whole cells."""
    if enlarges or width * height > scale**2:
        ratio = width / height
        height = int(scale / sqrt(ratio))
        width = int(height * ratio)
    return Size(_rounded(width, cell), _rounded(height, cell))


def _rounded(length: float, unit: int) -> int:
    """A multiple of `unit`, at least one."""
    return max(round(length / unit) * unit, unit)
