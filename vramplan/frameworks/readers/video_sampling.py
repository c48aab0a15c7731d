"""How a framework samples videos: the number of frames, and their size."""

from __future__ import annotations

from math import sqrt
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.frameworks.settings import ConfigReader, Note
from vramplan.inputs.images import USUAL_FRAME, USUAL_FRAMES, Limits, Size, process_image
from vramplan.inputs.images.native_resolution import smart_resize
from vramplan.inputs.images.types import image_size
from vramplan.inputs.model_spec import Config, ModelSpec

VIDEO_TOKENS = int(0.9 * 128000)
"""Most tokens of all frames of one video (qwen_vl_utils 0.0.14, vision_process.py: MODEL_SEQ_LEN)."""
MIN_FRAME_TOKENS, MAX_FRAME_TOKENS = 128, 768
"""Tokens of one frame by default (VIDEO_MIN_TOKEN_NUM, VIDEO_MAX_TOKEN_NUM)."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a framework does to a video before the model's own processor."""

    frames: int | None = None
    """Most frames, if the configuration limits them."""
    pixels: int | None = None
    """Most pixels of a frame, if the configuration limits them."""
    tokens: tuple[int, int] | None = None
    """Least and most tokens of a Qwen model's frame if qwen_vl_utils resizes it; the processor then does not."""
    least_pixels: int | None = None
    """Least pixels of such a frame, if the configuration limits them in pixels."""
    keys: tuple[str, ...] = ()
    """Keys and variables that set any of these."""


def from_environment(config: ConfigReader) -> Sampling:
    """The sampling of ms-swift's variables (swift/model/models/qwen.py, swift/template/templates/internvl.py)."""
    numbers = {}
    for name in (*QWEN_VARIABLES, "FPS_MAX_FRAMES", "VIDEO_SEGMENTS"):
        value = config.variable(name)
        if value is not None and value.isdigit():
            numbers[name] = int(value)
    if (config.variable("VIDEO_MAX_NUM") or "1") != "1":
        raise config.unsupported("VIDEO_MAX_NUM", "other than 1 is not modelled")
    return Sampling(
        frames=numbers.get("FPS_MAX_FRAMES") or numbers.get("VIDEO_SEGMENTS"),
        pixels=numbers.get("VIDEO_MAX_PIXELS"),
        tokens=(
            numbers.get("VIDEO_MIN_TOKEN_NUM", MIN_FRAME_TOKENS),
            numbers.get("VIDEO_MAX_TOKEN_NUM", MAX_FRAME_TOKENS),
        ),
        least_pixels=numbers.get("VIDEO_MIN_PIXELS"),
        keys=tuple(numbers),
    )


QWEN_VARIABLES = ("VIDEO_MAX_PIXELS", "VIDEO_MIN_PIXELS", "VIDEO_MAX_TOKEN_NUM", "VIDEO_MIN_TOKEN_NUM")


def settled(spec: ModelSpec, sampling: Sampling, job: dict[str, Any], notes: list[Note]) -> dict[str, Any]:
    """Fields of a job with videos: frames as they enter the processor; assumptions become notes."""
    fields: dict[str, Any] = dict.fromkeys(("min_pixels", "max_pixels", "max_tiles"))
    notes[:] = [note for note in notes if note.key not in sampling.keys]
    frames = job.get("frames") or sampling.frames
    if frames is None:
        frames = USUAL_FRAMES
        notes.append(Note("warning", "frames", f"of a video not known: {frames} assumed; give --frames"))
    size = USUAL_FRAME
    if job.get("image_size") is not None:
        size = Size(*image_size(job["image_size"]))
    else:
        notes.append(Note("warning", "frame size", f"not known: {size} assumed; give --image-size"))
    if sampling.tokens is not None and spec.model_type.startswith("qwen"):
        size = _resized_by_qwen(spec, sampling, size, frames)
        pixels = size.width * size.height * frames  # the processor leaves them as they are
        fields |= {"min_pixels": 1, "max_pixels": pixels}
    elif sampling.pixels is not None and sampling.tokens is None:
        size = Size(*shrunk(size, sampling.pixels))
    elif sampling.pixels is not None:
        notes.append(Note("warning", "VIDEO_MAX_PIXELS", f"is not read for {spec.model_type}: frames keep their size"))
    process_image(spec, size, Limits(), frames)  # refuses models that take no videos
    return fields | {"frames": frames, "image_size": tuple(size)}


def _resized_by_qwen(spec: ModelSpec, sampling: Sampling, size: Size, frames: int) -> Size:
    """A frame as qwen_vl_utils resizes it (fetch_video)."""
    vision = Config(spec.config, spec.name).part("vision_config")
    side = vision.count("patch_size", 14) * vision.count("spatial_merge_size", 2)
    assert sampling.tokens is not None
    min_tokens, max_tokens = sampling.tokens
    if sampling.least_pixels is not None:  # swift: compat_qwen_vl_utils
        min_tokens = sampling.least_pixels // side**2
    if sampling.pixels is not None and "VIDEO_MAX_TOKEN_NUM" not in sampling.keys:
        max_tokens = sampling.pixels // side**2
    tokens = max(min(max_tokens, VIDEO_TOKENS / frames * 2), int(min_tokens * side**2 * 1.05) / side**2)
    return smart_resize(size, side, min_tokens * side**2, int(tokens * side**2))


def shrunk(size: tuple[int, int], cap: int | None) -> tuple[int, int]:
    """(width, height) of an image or frame resized to at most `cap` pixels, its shape kept."""
    pixels = size[0] * size[1]
    if cap is None or pixels <= cap:
        return size
    scale = sqrt(cap / pixels)
    return max(1, int(size[0] * scale)), max(1, int(size[1] * scale))
