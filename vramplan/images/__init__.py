"""From an image's size to patches and tokens, as each model's own processor does it."""

from __future__ import annotations

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.images import crops, grids, tiles
from vramplan.images.picture import Eyes, Limits, Picture, Processor, Size, Tensor
from vramplan.images.remote import COUNTED
from vramplan.job import Job
from vramplan.spec import Config, ModelSpec


def by_tower(processors: dict[str, Processor]) -> Processor:
    """The processor that goes with the tower, where an architecture takes several."""

    def processor(c: Config, p: Config, size: Size, limits: Limits) -> Picture:
        tower = c.part("vision_config").text("model_type", next(iter(processors)))
        if tower not in processors:
            raise UnsupportedError(f"a vision tower of type {tower!r} is not known; known: {', '.join(processors)}")
        return processors[tower](c, p, size, limits)

    return processor


LLAVA = ("model.vision_tower", ("model.multi_modal_projector",))
NEXT = ("model.vision_tower", ("model.multi_modal_projector", "model.image_newline"))
QWEN = ("model.visual", ("model.visual.merger", "model.visual.deepstack_merger_list"), "mm_token_type_ids")
PHI = "model.embed_tokens_extend.image_embed"
PHI_PROJECTOR = ("img_projection_up", "img_projection_down", "global_img_feature_extensor", "sub_img_feature_extensor")
EYES: dict[str, Eyes] = {
    "internvl": Eyes(tiles.internvl, *LLAVA),
    "llava": Eyes(by_tower({"clip_vision_model": tiles.llava, "pixtral": grids.pixtral}), *LLAVA),
    "llava_next": Eyes(tiles.llava_next, *NEXT),
    "llava_onevision": Eyes(tiles.llava_onevision, *NEXT),
    "gemma3": Eyes(tiles.gemma3, *LLAVA, "token_type_ids"),
    "paligemma": Eyes(tiles.paligemma, *LLAVA, "token_type_ids"),
    "mistral3": Eyes(grids.pixtral, *LLAVA),
    "idefics3": Eyes(tiles.idefics3, "model.vision_model", ("model.connector",)),
    "smolvlm": Eyes(tiles.idefics3, "model.vision_model", ("model.connector",)),
    "qwen2_vl": Eyes(grids.qwen2_vl, *QWEN),
    "qwen2_5_vl": Eyes(grids.qwen2_vl, *QWEN),
    "qwen3_vl": Eyes(grids.qwen3_vl, *QWEN),
    "qwen3_vl_moe": Eyes(grids.qwen3_vl, *QWEN),
    "qwen3_5": Eyes(grids.qwen3_vl, *QWEN),
    "qwen3_5_moe": Eyes(grids.qwen3_vl, *QWEN),
    "mllama": Eyes(tiles.mllama, "model.vision_model", ("model.multi_modal_projector",)),
    "llama4": Eyes(crops.llama4, "vision_model", ("multi_modal_projector",)),
    "gemma3n": Eyes(tiles.gemma3n, "model.vision_tower", ("model.embed_vision",), "token_type_ids"),
    "gemma4": Eyes(grids.gemma4, "model.vision_tower", ("model.embed_vision",), "mm_token_type_ids"),
    "phi4_multimodal": Eyes(crops.phi4, f"{PHI}.img_processor", tuple(f"{PHI}.{part}" for part in PHI_PROJECTOR)),
    "glm4v": Eyes(grids.glm4v, *QWEN),
    "glm4v_moe": Eyes(grids.glm4v, *QWEN),
}
"""By transformers' model_type."""

PROCESSORS = {**COUNTED, **{model_type: eyes.processor for model_type, eyes in EYES.items()}}
"""All whose tokens can be counted, also where no block describes the model."""

USUAL_SIZE = Size(1024, 1024)
"""Taken where nothing is said: about what a phone's picture is scaled to for a data set."""


def count(spec: ModelSpec, size: Size, limits: Limits) -> Picture:
    """What the model's processor makes of one image.

    Raises:
        ConfigError: for an image or limits that the processor refuses.
    """
    config, processor = Config(spec.config, spec.name), Config(spec.processor, f"{spec.name}: preprocessor_config.json")
    return PROCESSORS[spec.model_type](config, processor, size, limits)


def picture_of(spec: ModelSpec, job: Job) -> Picture | None:
    """What the model's processor makes of each of the job's images; None where it has none.

    Raises:
        ConfigError: for an image or limits that the processor refuses, or more image tokens than fit the sequence.
    """
    if spec.model_type not in PROCESSORS:
        if job.images:
            raise ConfigError(f"--images {job.images}: {spec.name} takes text alone")
        return None
    size = Size(*(job.image_size or USUAL_SIZE))
    limits = Limits(job.min_pixels, job.max_pixels, job.max_tiles)
    found = count(spec, size, limits)
    if job.images * found.all_tokens > job.sequence_length:
        each = f"{job.images} images of {size} pixels make" if job.images > 1 else f"an image of {size} pixels makes"
        raise ConfigError(
            f"--seq-len {job.sequence_length}: {each} {job.images * found.all_tokens:,} tokens alone (as {found.said});"
            " frameworks stop or cut the image tokens off there. Raise --seq-len, or make the image smaller"
        )
    return found


__all__ = [
    "COUNTED",
    "EYES",
    "PROCESSORS",
    "USUAL_SIZE",
    "Eyes",
    "Limits",
    "Picture",
    "Processor",
    "Size",
    "Tensor",
    "count",
    "picture_of",
]
