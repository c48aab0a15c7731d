"""From an image's size to patches and tokens, as each model's own processor does it."""

from __future__ import annotations

from vramplan.errors import ConfigError
from vramplan.images import grids, tiles
from vramplan.images.picture import Eyes, Limits, Picture, Processor, Size, Tensor
from vramplan.job import Job
from vramplan.spec import Config, ModelSpec

EYES: dict[str, Eyes] = {
    "internvl": Eyes(tiles.internvl, "model.vision_tower", "model.multi_modal_projector"),
    "llava": Eyes(tiles.llava, "model.vision_tower", "model.multi_modal_projector"),
    "qwen2_vl": Eyes(grids.qwen2_vl, "model.visual", "model.visual.merger", token_types=True),
    "qwen2_5_vl": Eyes(grids.qwen2_vl, "model.visual", "model.visual.merger", token_types=True),
    "qwen3_vl": Eyes(grids.qwen3_vl, "model.visual", "model.visual.merger", token_types=True),
}
"""By transformers' model_type."""

USUAL_SIZE = Size(1024, 1024)
"""Taken where nothing is said: about what a phone's picture is scaled to for a data set."""


def picture_of(spec: ModelSpec, job: Job) -> Picture | None:
    """What the model's processor makes of each of the job's images; None where it has none.

    Raises:
        ConfigError: for an image or limits that the processor refuses, or more image tokens than fit the sequence.
    """
    eyes = EYES.get(spec.model_type)
    if eyes is None:
        if job.images:
            raise ConfigError(f"--images {job.images}: {spec.name} takes text alone")
        return None
    size = Size(*(job.image_size or USUAL_SIZE))
    limits = Limits(job.min_pixels, job.max_pixels, job.max_tiles)
    config, processor = Config(spec.config, spec.name), Config(spec.processor, f"{spec.name}: preprocessor_config.json")
    found = eyes.processor(config, processor, size, limits)
    if job.images * found.all_tokens > job.sequence_length:
        each = f"{job.images} images of {size} pixels make" if job.images > 1 else f"an image of {size} pixels makes"
        raise ConfigError(
            f"--seq-len {job.sequence_length}: {each} {job.images * found.all_tokens:,} tokens alone ({found.said});"
            " frameworks stop or cut the image tokens off there. Raise --seq-len, or make the image smaller"
        )
    return found


__all__ = ["EYES", "USUAL_SIZE", "Eyes", "Limits", "Picture", "Processor", "Size", "Tensor", "picture_of"]
