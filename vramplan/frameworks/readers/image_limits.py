"""Images that a configuration trains on: how large the largest is, by the caps that reach the processor."""

from __future__ import annotations

from math import isqrt, sqrt
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers.video_sampling import shrunk
from vramplan.frameworks.settings import Note
from vramplan.inputs.images import Limits, Size, process_image
from vramplan.inputs.images.types import image_size
from vramplan.inputs.model_spec import ModelSpec

ASSUMED = (1024, 672, 448, 336, 224)
"""Sides of the image that is assumed where nothing is said: the first that leaves room for text."""
TILED = ("internvl",)
"""Models whose processor cuts an image into at most so many tiles."""


def settled(spec: ModelSpec, reading: ParsedConfig, job: dict[str, Any]) -> dict[str, Any]:
    """The largest image that the caps let through; a cap that the model's processor does not read changes nothing."""
    found: dict[str, Any] = {"min_pixels": None, "max_pixels": None}
    if spec.model_type not in TILED:
        found["max_tiles"] = None
    cap = job.get("max_pixels")
    if cap is not None and not reading.caps_resize and not spec.model_type.startswith("qwen"):
        name = str(reading.names.get("max_pixels", "MAX_PIXELS"))
        reading.notes.insert(0, Note("warning", name, f"is not read for {spec.model_type}: no cap is applied"))
        cap = None
    reads = cap is not None and not reading.caps_resize  # the processor itself keeps to it
    if reads:
        found["max_pixels"] = cap
    if not reading.caps_resize and spec.model_type.startswith("qwen"):
        found["min_pixels"] = job.get("min_pixels")
    if job.get("image_size") is not None:
        size = image_size(job["image_size"])
        resized = reading.caps_resize
        return found | {"image_size": enlarged(shrunk(size, cap), job.get("min_pixels")) if resized else size}
    if cap is not None:
        side = isqrt(cap)
        size = _fullest(cap, 32 if spec.model_type.startswith("qwen3") else 28) if reads else (side, side)
        reading.notes.append(
            Note("default", "image size", f"not known: {size[0]} x {size[1]}, the most the cap allows")
        )
        return found | {"image_size": size}
    side = next((side for side in ASSUMED if _has_room(spec, side, job)), ASSUMED[-1])
    reading.notes.append(Note("warning", "image size", f"not known: {side} x {side} assumed; give --image-size"))
    return found | {"image_size": (side, side)}


def enlarged(size: tuple[int, int], least: int | None) -> tuple[int, int]:
    """An image resized to at least so many pixels, its shape kept (LLaMA-Factory, data/mm_plugin.py)."""
    pixels = size[0] * size[1]
    if least is None or pixels >= least:
        return size
    scale = sqrt(least / pixels)
    return int(size[0] * scale), int(size[1] * scale)


def _fullest(cap: int, patch: int) -> tuple[int, int]:
    """The image of at most `cap` pixels with the most tokens of `patch` pixels a side, no flatter than 1 to 4."""
    most = cap // (patch * patch)
    rows = max(range(max(1, isqrt(most) // 2), isqrt(most) + 1), key=lambda rows: (rows * (most // rows), rows))
    return most // rows * patch, rows * patch


def _has_room(spec: ModelSpec, side: int, job: dict[str, Any]) -> bool:
    try:
        one = process_image(spec, Size(side, side), Limits())
    except ConfigError:
        return False
    return bool((job.get("images") or 1) * one.all_tokens < job["sequence_length"])
