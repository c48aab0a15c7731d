"""Videos that a configuration trains on: how many frames are left of each, and how large they are by then."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from vramplan.frameworks.settings import ConfigReader, Note
from vramplan.inputs.images import USUAL_FRAME, USUAL_FRAMES, Limits, Size, process_image
from vramplan.inputs.images.native_resolution import smart_resize
from vramplan.inputs.images.types import image_size
from vramplan.inputs.model_spec import Config, ModelSpec

SHARED = int(0.9 * 128000)
"""Tokens that the frames of one video share (qwen_vl_utils 0.0.14, vision_process.py: MODEL_SEQ_LEN)."""
LEAST, MOST = 128, 768
"""Tokens of one frame (VIDEO_MIN_TOKEN_NUM, VIDEO_MAX_TOKEN_NUM)."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a framework makes of a video before the model's own processor sees it."""

    frames: int | None = None
    """Most frames, where the configuration says."""
    pixels: int | None = None
    """Most pixels of a frame."""
    tokens: tuple[int, int] | None = None
    """Least and most tokens of a frame of a Qwen model: qwen_vl_utils has resized it, its processor does not again."""
    least_pixels: int | None = None
    """Least pixels of a frame for that, where they are said so."""
    keys: tuple[str, ...] = ()
    """What of this the configuration says."""


def from_environment(keys: ConfigReader) -> Sampling:
    """The variables that ms-swift reads (swift/model/models/qwen.py, swift/template/templates/internvl.py)."""
    said = {}
    for name in (*QWENS, "FPS_MAX_FRAMES", "VIDEO_SEGMENTS"):
        value = keys.variable(name)
        if value is not None and value.isdigit():
            said[name] = int(value)
    if (keys.variable("VIDEO_MAX_NUM") or "1") != "1":
        raise keys.refuse("VIDEO_MAX_NUM", "other than 1 is not modelled")
    return Sampling(
        frames=said.get("FPS_MAX_FRAMES") or said.get("VIDEO_SEGMENTS"),
        pixels=said.get("VIDEO_MAX_PIXELS"),
        tokens=(said.get("VIDEO_MIN_TOKEN_NUM", LEAST), said.get("VIDEO_MAX_TOKEN_NUM", MOST)),
        least_pixels=said.get("VIDEO_MIN_PIXELS"),
        keys=tuple(said),
    )


QWENS = ("VIDEO_MAX_PIXELS", "VIDEO_MIN_PIXELS", "VIDEO_MAX_TOKEN_NUM", "VIDEO_MIN_TOKEN_NUM")


def settled(spec: ModelSpec, sampling: Sampling, job: dict[str, Any], notes: list[Note]) -> dict[str, Any]:
    """Fields of a job with videos: their frames as they enter the processor; what is not known is said."""
    found: dict[str, Any] = dict.fromkeys(("min_pixels", "max_pixels", "max_tiles"))
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
        size = _by_qwen(spec, sampling, size, frames)
        pixels = size.width * size.height * frames  # the processor leaves them as they are
        found |= {"min_pixels": 1, "max_pixels": pixels}
    elif sampling.pixels is not None and sampling.tokens is None:
        size = Size(*shrunk(size, sampling.pixels))
    elif sampling.pixels is not None:
        notes.append(Note("warning", "VIDEO_MAX_PIXELS", f"is not read for {spec.model_type}: frames keep their size"))
    process_image(spec, size, Limits(), frames)  # refuses what takes no videos before anything else is said of it
    return found | {"frames": frames, "image_size": tuple(size)}


def _by_qwen(spec: ModelSpec, sampling: Sampling, size: Size, frames: int) -> Size:
    """A frame as qwen_vl_utils resizes it (fetch_video)."""
    vision = Config(spec.config, spec.name).part("vision_config")
    side = vision.count("patch_size", 14) * vision.count("spatial_merge_size", 2)
    assert sampling.tokens is not None
    low, high = sampling.tokens
    if sampling.least_pixels is not None:  # swift: compat_qwen_vl_utils
        low = sampling.least_pixels // side**2
    if sampling.pixels is not None and "VIDEO_MAX_TOKEN_NUM" not in sampling.keys:
        high = sampling.pixels // side**2
    most = max(min(high, SHARED / frames * 2), int(low * side**2 * 1.05) / side**2)
    return smart_resize(size, side, low * side**2, int(most * side**2))


def shrunk(size: tuple[int, int], cap: int | None) -> tuple[int, int]:
    """An image or a frame resized to at most `cap` pixels, its shape kept."""
    pixels = size[0] * size[1]
    if cap is None or pixels <= cap:
        return size
    scale = sqrt(cap / pixels)
    return max(1, int(size[0] * scale)), max(1, int(size[1] * scale))
