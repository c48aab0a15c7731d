"""The largest image that a configuration trains on, by the caps that reach the processor."""

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

ASSUMED_SIDES = (1024, 672, 448, 336, 224)
"""Sides of the assumed image if its size is not known: the first that leaves room for text."""
TILED_MODELS = ("internvl", "minicpmv4_6", "minicpmv4_7")
"""Models whose processor reads a cap on an image's tiles."""


def settled(spec: ModelSpec, parsed: ParsedConfig, job: dict[str, Any]) -> dict[str, Any]:
    """Fields of the job for the largest image within the caps; caps that the model's processor ignores are noted."""
    fields: dict[str, Any] = {"min_pixels": None, "max_pixels": None}
    if spec.model_type not in TILED_MODELS:
        fields["max_tiles"] = None
    cap = job.get("max_pixels")
    if cap is not None and not parsed.resizes_images and not spec.model_type.startswith("qwen"):
        name = str(parsed.names.get("max_pixels", "MAX_PIXELS"))
        parsed.notes.insert(0, Note("warning", name, f"is not read for {spec.model_type}: no cap is applied"))
        cap = None
    processor_caps = cap is not None and not parsed.resizes_images  # the processor itself applies it
    if processor_caps:
        fields["max_pixels"] = cap
    if not parsed.resizes_images and spec.model_type.startswith("qwen"):
        fields["min_pixels"] = job.get("min_pixels")
    if job.get("image_size") is not None:
        size = image_size(job["image_size"])
        is_resized = parsed.resizes_images
        return fields | {"image_size": enlarged(shrunk(size, cap), job.get("min_pixels")) if is_resized else size}
    if cap is not None:
        side = isqrt(cap)
        size = _most_tokens(cap, 32 if spec.model_type.startswith("qwen3") else 28) if processor_caps else (side, side)
        parsed.notes.append(Note("default", "image size", f"not known: {size[0]} x {size[1]}, the most the cap allows"))
        return fields | {"image_size": size}
    side = next((side for side in ASSUMED_SIDES if _has_room(spec, side, job)), ASSUMED_SIDES[-1])
    parsed.notes.append(Note("warning", "image size", f"not known: {side} x {side} assumed; give --image-size"))
    return fields | {"image_size": (side, side)}


def enlarged(size: tuple[int, int], least: int | None) -> tuple[int, int]:
    """(width, height) of an image resized to at least `least` pixels, its shape kept (LLaMA-Factory: mm_plugin.py)."""
    pixels = size[0] * size[1]
    if least is None or pixels >= least:
        return size
    scale = sqrt(least / pixels)
    return int(size[0] * scale), int(size[1] * scale)


def _most_tokens(cap: int, patch: int) -> tuple[int, int]:
    """(width, height) within `cap` pixels with the most tokens of `patch` pixels a side, no flatter than 1 to 4."""
    most = cap // (patch * patch)
    rows = max(range(max(1, isqrt(most) // 2), isqrt(most) + 1), key=lambda rows: (rows * (most // rows), rows))
    return most // rows * patch, rows * patch


def _has_room(spec: ModelSpec, side: int, job: dict[str, Any]) -> bool:
    try:
        processed = process_image(spec, Size(side, side), Limits())
    except ConfigError:
        return False
    if job.get("loss") == "log_probs":  # of verl, whose prompts have the tokens of their image
        return bool(processed.all_tokens < job["prompt_length"])
    return bool((job.get("images") or 1) * processed.all_tokens < job["sequence_length"])
