"""Videos: frames of one size through each model's video processor (transformers 5.23, video_processing_*.py).

Frames are those that were sampled already; what a processor writes between them (their number or time) stands in the
text beside their tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import floor

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.inputs.images import fixed_tiles, native_resolution
from vramplan.inputs.images.remote_code import minicpmv
from vramplan.inputs.images.types import Film, Limits, ProcessedImage, Size, Tensor, refuse
from vramplan.inputs.model_spec import Config
from vramplan.units import ceil_div

FPS = 2.0
"""Frames in a second of video, by which they are dated: Qwen's and GLM's own `fps`."""
PIECES = re.compile(r" ?[A-Za-z]+|\d| ?[^\sA-Za-z\d]+|\s")
"""What tokenizers make one token of in such text: a word with its space, a digit, a mark, a line's end."""


def tokens_of(text: str) -> int:
    """Tokens of a short text."""
    return len(PIECES.findall(text))


def dated(
    made: ProcessedImage, texts: list[str], marks: int = 2, count: Callable[[str], int] = tokens_of
) -> ProcessedImage:
    """The same with each frame, or pair of them, between `marks` marks and beside its text."""
    extra = made.extra_tokens + len(texts) * marks + sum(map(count, texts))
    return replace(made, extra_tokens=extra, runs=len(texts))


def clock(frames: int) -> list[str]:
    """Minutes and seconds of each frame."""
    seconds = [floor(number / FPS) for number in range(frames)]
    return [f"{second // 60:02d}:{second % 60:02d}" for second in seconds]


# -- two frames to a patch: Qwen, GLM ----------------------------------------------------------------------------------


def patched(
    c: Config, frames: int, patch: int, resize: Callable[[int], Size], token: str = "video_token_id"
) -> ProcessedImage:
    """Frames in pairs, an odd last one doubled; `resize` takes pixels of a token's side."""
    vision = c.part("vision_config")
    patch, merge, twice = vision.count("patch_size", patch), vision.count("spatial_merge_size", 2), pairs(c)
    resized = resize(patch * merge)
    rows, columns, times = resized.height // patch, resized.width // patch, ceil_div(frames, twice)
    tensors = (
        Tensor("pixel_values_videos", (times * rows * columns, 3 * twice * patch * patch)),
        Tensor("video_grid_thw", (1, 3), "int64", (times, rows, columns)),
    )
    tokens, said = times * rows * columns // merge**2, f"{frames} frames of {resized}"
    return ProcessedImage(tokens, 2, times, rows, columns, tensors, said, frames=frames, token=token)


def pairs(c: Config) -> int:
    """Frames of one patch."""
    return c.part("vision_config").count("temporal_patch_size", 2)


def qwen2_vl(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """Qwen2-VL, 2.5-VL: limits count the pixels of a frame; `cap_pixels_per_frame` shares 128,000 tokens out."""
    refuse(limits, "this model", "max_tiles")

    def resize(side: int) -> Size:
        least, most = native_resolution.pixel_range(p, limits, side, 128 * 28 * 28, 28 * 28 * 768)
        if p.flag("cap_pixels_per_frame", False):
            total = int(p.count("max_video_tokens", 128000) * side * side * 0.9)
            most = max(min(most, total * pairs(c) // frames), int(least * 1.05))
        return native_resolution.smart_resize(size, side, least, most)

    return patched(c, frames, 14, resize)


def counting_all(
    c: Config, p: Config, size: Size, frames: int, limits: Limits, least: int, most: int
) -> Callable[[int], Size]:
    """The resize of Qwen3-VL and GLM-4.1V, whose limits count the pixels of all frames.

    Raises:
        ConfigError: for fewer frames than one patch has.
    """
    refuse(limits, "this model", "max_tiles")
    if frames < pairs(c):
        raise ConfigError(f"{setting('frames', frames)}: the video processor takes at least {pairs(c)}")

    def resize(side: int) -> Size:
        low, high = native_resolution.pixel_range(p, limits, side, least, most)
        if p.flag("cap_pixels_per_frame", False):
            share = min(p.count("max_video_tokens", 768) * side * side, high // frames)
            high = max(share, int(low * 1.05)) * frames
        return native_resolution.smart_resize(native_resolution.at_least(size, side), side, low, high, frames, pairs(c))

    return resize


def qwen3_vl(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """Qwen3-VL, Qwen3.5: each pair of frames between marks of its own, its middle in seconds before it."""
    made = patched(c, frames, 16, counting_all(c, p, size, frames, limits, 128 * 32 * 32, 32 * 32 * 768))
    middles = [(first + min(first + pairs(c), frames) - 1) / 2 for first in range(0, frames, pairs(c))]
    return dated(made, [f"<{middle / FPS:.1f} seconds>" for middle in middles])


def glm4v(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """GLM-4.1V, 4.5V: each pair of frames between marks of its own, whole seconds behind it."""
    resize = counting_all(c, p, size, frames, limits, 112 * 112, 28 * 28 * 2 * 30000)
    made = patched(c, frames, 14, resize, "image_token_id")
    texts = [str(floor(first / FPS)) for first in range(0, frames, pairs(c))]
    return dated(made, texts, count=lambda text: ceil_div(len(text), 3))  # its tokenizer takes three digits at once


# -- every frame a picture ---------------------------------------------------------------------------------------------


def square(c: Config, p: Config, key: str, usual: int) -> tuple[int, int]:
    """Pixels and patches of a frame's side: the tower's own.

    Raises:
        UnsupportedError: where the processor makes frames of another size.
    """
    vision = c.part("vision_config")
    side, patch = fixed_tiles.side(vision.get("image_size", usual)), fixed_tiles.side(vision.get("patch_size", 14))
    asked = p.get(key, {})
    for name in ("height", "width", "longest_edge"):
        if asked.get(name, side) != side:
            raise UnsupportedError(f"{key} = {asked}: only frames of {side} x {side}, the tower's own, are described")
    return side, side // patch


def internvl(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """InternVL: one tile a frame, which is numbered."""
    refuse(limits, "internvl", "min_pixels", "max_pixels", "max_tiles")
    tile, across = square(c, p, "size", 448)
    each = int(across * c.number("downsample_ratio", 0.5)) ** 2
    texts = ["\n" * (number > 1) + f"Frame{number}: " for number in range(1, frames + 1)]
    pixels = Tensor("pixel_values", (frames, 3, tile, tile))
    said = f"{frames} frames of {tile} x {tile}"
    return dated(ProcessedImage(frames * each, 0, frames, across, across, (pixels,), said, frames=frames), texts)


def llava_onevision(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """LLaVA-OneVision: each frame squeezed into a square, its features halved both ways; one end behind all."""
    refuse(limits, "llava_onevision", "min_pixels", "max_pixels", "max_tiles")
    tile, across = square(c, p, "size", 384)
    pixels = Tensor("pixel_values_videos", (1, frames, 3, tile, tile))
    half = ceil_div(across, 2)
    tokens, said = frames * half * half + 1, f"{frames} frames of {tile} x {tile}"
    return ProcessedImage(
        tokens, 0, frames, across, across, (pixels,), said, (half, half), frames, token="video_token_id"
    )


def smolvlm(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """SmolVLM: each frame squeezed into one tile, dated; a sentence before all, two lines' ends behind."""
    refuse(limits, "smolvlm", "min_pixels", "max_pixels", "max_tiles")
    tile, across = square(c, p, "max_image_size", 364)
    each = across**2 // c.count("scale_factor", 2) ** 2
    tensors = (
        Tensor("pixel_values", (1, frames, 3, tile, tile)),
        Tensor("pixel_attention_mask", (1, frames, tile, tile), "int64"),
    )
    said = f"{frames} frames of {tile} x {tile}"
    made = ProcessedImage(frames * each, INTRODUCTION, frames, across, across, tensors, said, frames=frames)
    return dated(made, [f"\nFrame from {time}:" for time in clock(frames)], marks=3)


INTRODUCTION = 32
"""``You are provided the following series of ... frames from a 0:00:08 [H:MM:SS] video.`` and what stands last."""


def gemma4(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """Gemma 4: each frame as an image of a smaller budget, dated."""
    one = native_resolution.gemma4(
        c, Config({"max_soft_tokens": p.count("max_soft_tokens", 70)}, "video processor"), size, limits
    )
    pixels, places = one.tensors
    assert places.values is not None
    tensors = (
        Tensor("pixel_values_videos", (frames, *pixels.shape[1:])),
        Tensor("video_position_ids", (frames, *places.shape[1:]), "int64", places.values * frames),
        Tensor("num_frames_per_video", (1,), "int64", (frames,)),
    )
    tokens, said = frames * one.tokens, f"{frames} frames of {one.said}"
    made = ProcessedImage(
        tokens, 0, frames, one.rows, one.columns, tensors, said, frames=frames, token="video_token_id"
    )
    return dated(made, [" " * (number > 0) + f"{time} " for number, time in enumerate(clock(frames))])


def minicpm(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """MiniCPM-V: every frame an image without a number, not cut up unless --max-tiles says so, a line's end behind."""
    one = minicpmv(c, p, size, Limits(limits.min_pixels, limits.max_pixels, limits.max_tiles or 1), numbered=False)
    said = f"{frames} frames of {one.said}"
    return ProcessedImage(frames * one.tokens, frames * (one.extra_tokens + 1), frames * one.tiles, 0, 0, (), said)


FILMED: dict[str, Film] = {"minicpmv": minicpm}
"""Video processors that come with a model's own code, by its model_type."""
