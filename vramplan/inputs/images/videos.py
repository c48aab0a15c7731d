"""Videos: frames of one size through each model's video processor (transformers 5.23, video_processing_*.py).

The frames are already sampled; text that a processor writes between them (their number or time) is counted as tokens
beside theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import floor

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.inputs.images import fixed_tiles, native_resolution
from vramplan.inputs.images.remote_code import minicpmv
from vramplan.inputs.images.types import Limits, ProcessedImage, Size, Tensor, VideoProcessor, refuse
from vramplan.inputs.model_spec import Config
from vramplan.units import ceil_div

FPS = 2.0
"""Frames per second, for timestamps: the default `fps` of Qwen and GLM."""
TOKENS = re.compile(r" ?[A-Za-z]+|\d| ?[^\sA-Za-z\d]+|\s")
"""Text that tokenizers turn into one token: a word with its space, a digit, punctuation, a newline."""


def tokens_of(text: str) -> int:
    """Number of tokens of a short text between frames."""
    return len(TOKENS.findall(text))


def with_texts(
    video: ProcessedImage, texts: list[str], markers: int = 2, count: Callable[[str], int] = tokens_of
) -> ProcessedImage:
    """The video with one text and `markers` marker tokens beside each frame, or pair of frames."""
    extra = video.extra_tokens + len(texts) * markers + sum(map(count, texts))
    return replace(video, extra_tokens=extra, runs=len(texts))


def timestamps(frames: int) -> list[str]:
    """Minutes and seconds of each frame, as "mm:ss"."""
    seconds = [floor(number / FPS) for number in range(frames)]
    return [f"{second // 60:02d}:{second % 60:02d}" for second in seconds]


# -- two frames to a patch: Qwen, GLM ----------------------------------------------------------------------------------


def grid(
    c: Config, frames: int, patch: int, resize: Callable[[int], Size], token: str = "video_token_id"
) -> ProcessedImage:
    """A video of frames in pairs, an odd last one doubled; `resize` gives their size for pixels of a token's side."""
    vision = c.part("vision_config")
    patch, merge, temporal = vision.count("patch_size", patch), vision.count("spatial_merge_size", 2), temporal_patch(c)
    resized = resize(patch * merge)
    rows, columns, groups = resized.height // patch, resized.width // patch, ceil_div(frames, temporal)
    tensors = (
        Tensor("pixel_values_videos", (groups * rows * columns, 3 * temporal * patch * patch)),
        Tensor("video_grid_thw", (1, 3), "int64", (groups, rows, columns)),
    )
    tokens, description = groups * rows * columns // merge**2, f"{frames} frames of {resized}"
    return ProcessedImage(tokens, 2, groups, rows, columns, tensors, description, frames=frames, token=token)


def temporal_patch(c: Config) -> int:
    """Number of frames of one patch."""
    return c.part("vision_config").count("temporal_patch_size", 2)


def qwen2_vl(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """Qwen2-VL, 2.5-VL: limits count the pixels of a frame; `cap_pixels_per_frame` divides 128,000 tokens."""
    refuse(limits, "this model", "max_tiles")

    def resize(side: int) -> Size:
        min_pixels, max_pixels = native_resolution.pixel_range(p, limits, side, 128 * 28 * 28, 28 * 28 * 768)
        if p.flag("cap_pixels_per_frame", False):
            total = int(p.count("max_video_tokens", 128000) * side * side * 0.9)
            max_pixels = max(min(max_pixels, total * temporal_patch(c) // frames), int(min_pixels * 1.05))
        return native_resolution.smart_resize(size, side, min_pixels, max_pixels)

    return grid(c, frames, 14, resize)


def resize_by_all_frames(
    c: Config, p: Config, size: Size, frames: int, limits: Limits, min_pixels: int, max_pixels: int
) -> Callable[[int], Size]:
    """The resize of Qwen3-VL and GLM-4.1V, whose limits count the pixels of all frames.

    Raises:
        ConfigError: if there are fewer frames than one patch has.
    """
    refuse(limits, "this model", "max_tiles")
    if frames < temporal_patch(c):
        raise ConfigError(f"{setting('frames', frames)}: the video processor takes at least {temporal_patch(c)}")

    def resize(side: int) -> Size:
        low, high = native_resolution.pixel_range(p, limits, side, min_pixels, max_pixels)
        if p.flag("cap_pixels_per_frame", False):
            share = min(p.count("max_video_tokens", 768) * side * side, high // frames)
            high = max(share, int(low * 1.05)) * frames
        return native_resolution.smart_resize(
            native_resolution.at_least(size, side), side, low, high, frames, temporal_patch(c)
        )

    return resize


def qwen3_vl(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """Qwen3-VL, Qwen3.5: two marker tokens around each pair of frames, its mean time in seconds before it."""
    video = grid(c, frames, 16, resize_by_all_frames(c, p, size, frames, limits, 128 * 32 * 32, 32 * 32 * 768))
    middles = [
        (first + min(first + temporal_patch(c), frames) - 1) / 2 for first in range(0, frames, temporal_patch(c))
    ]
    return with_texts(video, [f"<{middle / FPS:.1f} seconds>" for middle in middles])


def glm4v(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """GLM-4.1V, 4.5V: two marker tokens around each pair of frames, its time in whole seconds after it."""
    resize = resize_by_all_frames(c, p, size, frames, limits, 112 * 112, 28 * 28 * 2 * 30000)
    video = grid(c, frames, 14, resize, "image_token_id")
    texts = [str(floor(first / FPS)) for first in range(0, frames, temporal_patch(c))]
    return with_texts(
        video, texts, count=lambda text: ceil_div(len(text), 3)
    )  # its tokenizer takes three digits at once


# -- each frame as an image --------------------------------------------------------------------------------------------


def square(c: Config, p: Config, key: str, default: int) -> tuple[int, int]:
    """(pixels, patches) of a frame's side: those of the vision tower.

    Raises:
        UnsupportedError: if the processor resizes frames to another size.
    """
    vision = c.part("vision_config")
    side, patch = fixed_tiles.side(vision.get("image_size", default)), fixed_tiles.side(vision.get("patch_size", 14))
    frame_size = p.get(key, {})
    for name in ("height", "width", "longest_edge"):
        if frame_size.get(name, side) != side:
            raise UnsupportedError(
                f"{key} = {frame_size}: only frames of {side} x {side}, as the vision tower takes, are modelled"
            )
    return side, side // patch


def internvl(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """InternVL: one tile per frame, with the frame's number."""
    refuse(limits, "internvl", "min_pixels", "max_pixels", "max_tiles")
    tile, across = square(c, p, "size", 448)
    tokens_per_frame = int(across * c.number("downsample_ratio", 0.5)) ** 2
    texts = ["\n" * (number > 1) + f"Frame{number}: " for number in range(1, frames + 1)]
    pixels = Tensor("pixel_values", (frames, 3, tile, tile))
    description = f"{frames} frames of {tile} x {tile}"
    return with_texts(
        ProcessedImage(frames * tokens_per_frame, 0, frames, across, across, (pixels,), description, frames=frames),
        texts,
    )


def llava_onevision(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """LLaVA-OneVision: each frame resized to a square, its features halved in both directions; a newline at the end."""
    refuse(limits, "llava_onevision", "min_pixels", "max_pixels", "max_tiles")
    tile, across = square(c, p, "size", 384)
    pixels = Tensor("pixel_values_videos", (1, frames, 3, tile, tile))
    half = ceil_div(across, 2)
    tokens, description = frames * half * half + 1, f"{frames} frames of {tile} x {tile}"
    return ProcessedImage(
        tokens, 0, frames, across, across, (pixels,), description, (half, half), frames, token="video_token_id"
    )


def smolvlm(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """SmolVLM: each frame resized to one tile, with its timestamp; a sentence before all, two newlines after."""
    refuse(limits, "smolvlm", "min_pixels", "max_pixels", "max_tiles")
    tile, across = square(c, p, "max_image_size", 364)
    tokens_per_frame = across**2 // c.count("scale_factor", 2) ** 2
    tensors = (
        Tensor("pixel_values", (1, frames, 3, tile, tile)),
        Tensor("pixel_attention_mask", (1, frames, tile, tile), "int64"),
    )
    description = f"{frames} frames of {tile} x {tile}"
    video = ProcessedImage(
        frames * tokens_per_frame, INTRODUCTION_TOKENS, frames, across, across, tensors, description, frames=frames
    )
    return with_texts(video, [f"\nFrame from {time}:" for time in timestamps(frames)], markers=3)


INTRODUCTION_TOKENS = 32
"""Tokens of ``You are provided the following series of ... frames from a 0:00:08 [H:MM:SS] video.`` and of the end."""


def gemma4(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """Gemma 4: each frame as an image of a smaller budget, with its timestamp."""
    frame = native_resolution.gemma4(
        c, Config({"max_soft_tokens": p.count("max_soft_tokens", 70)}, "video processor"), size, limits
    )
    pixels, positions = frame.tensors
    assert positions.values is not None
    tensors = (
        Tensor("pixel_values_videos", (frames, *pixels.shape[1:])),
        Tensor("video_position_ids", (frames, *positions.shape[1:]), "int64", positions.values * frames),
        Tensor("num_frames_per_video", (1,), "int64", (frames,)),
    )
    tokens, description = frames * frame.tokens, f"{frames} frames of {frame.description}"
    video = ProcessedImage(
        tokens, 0, frames, frame.rows, frame.columns, tensors, description, frames=frames, token="video_token_id"
    )
    return with_texts(video, [" " * (number > 0) + f"{time} " for number, time in enumerate(timestamps(frames))])


def minicpm(c: Config, p: Config, size: Size, frames: int, limits: Limits) -> ProcessedImage:
    """MiniCPM-V: each frame as an image without a number, cut only if `max_tiles` is given, with a newline after it."""
    frame = minicpmv(c, p, size, Limits(limits.min_pixels, limits.max_pixels, limits.max_tiles or 1), numbered=False)
    description = f"{frames} frames of {frame.description}"
    return ProcessedImage(
        frames * frame.tokens, frames * (frame.extra_tokens + 1), frames * frame.tiles, 0, 0, (), description
    )


REMOTE_VIDEO_PROCESSORS: dict[str, VideoProcessor] = {"minicpmv": minicpm}
"""Video processors that come with a model's own code, by model_type."""
