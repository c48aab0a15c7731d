"""Patches and tokens of an image or a video, counted as each model's own processor makes them."""

from __future__ import annotations

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.inputs.images import adaptive_tiles, fixed_tiles, minicpm, naflex, native_resolution, videos
from vramplan.inputs.images.remote_code import COUNTED
from vramplan.inputs.images.sounds import HEARD, heard
from vramplan.inputs.images.types import ImageProcessor, Limits, ProcessedImage, Processor, Size, Tensor, VideoProcessor
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import Config, ModelSpec


def by_tower(processors: dict[str, Processor]) -> Processor:
    """The processor that goes with the vision tower, for an architecture that takes several."""

    def processor(c: Config, p: Config, size: Size, limits: Limits) -> ProcessedImage:
        tower = c.part("vision_config").text("model_type", next(iter(processors)))
        if tower not in processors:
            raise UnsupportedError(f"a vision tower of type {tower!r} is not known; known: {', '.join(processors)}")
        return processors[tower](c, p, size, limits)

    return processor


LLAVA = ("model.vision_tower", ("model.multi_modal_projector",))
NEXT = ("model.vision_tower", ("model.multi_modal_projector", "model.image_newline"))
QWEN = ("model.visual", ("model.visual.merger", "model.visual.deepstack_merger_list"), "mm_token_type_ids")
OMNI = ("model.visual", ("model.visual.merger", "model.visual.merger_list"), ("model.audio_tower",))
MINICPM = ("model.vision_tower", ("model.merger",))
PHI = "model.embed_tokens_extend.image_embed"
PHI_PROJECTOR = ("img_projection_up", "img_projection_down", "global_img_feature_extensor", "sub_img_feature_extensor")
IMAGE_PROCESSORS: dict[str, ImageProcessor] = {
    "internvl": ImageProcessor(fixed_tiles.internvl, *LLAVA, video=videos.internvl),
    "llava": ImageProcessor(
        by_tower({"clip_vision_model": fixed_tiles.llava, "pixtral": native_resolution.pixtral}), *LLAVA
    ),
    "llava_next": ImageProcessor(fixed_tiles.llava_next, *NEXT),
    "llava_onevision": ImageProcessor(fixed_tiles.llava_onevision, *NEXT, video=videos.llava_onevision),
    "aya_vision": ImageProcessor(fixed_tiles.aya_vision, *LLAVA),
    "gemma3": ImageProcessor(fixed_tiles.gemma3, *LLAVA, "token_type_ids"),
    "paligemma": ImageProcessor(fixed_tiles.paligemma, *LLAVA, "token_type_ids"),
    "mistral3": ImageProcessor(native_resolution.pixtral, *LLAVA),
    "idefics3": ImageProcessor(fixed_tiles.idefics3, "model.vision_model", ("model.connector",)),
    "smolvlm": ImageProcessor(fixed_tiles.idefics3, "model.vision_model", ("model.connector",), video=videos.smolvlm),
    "qwen2_vl": ImageProcessor(native_resolution.qwen2_vl, *QWEN, videos.qwen2_vl),
    "qwen2_5_vl": ImageProcessor(native_resolution.qwen2_vl, *QWEN, videos.qwen2_vl),
    "qwen3_vl": ImageProcessor(native_resolution.qwen3_vl, *QWEN, videos.qwen3_vl),
    "qwen3_vl_moe": ImageProcessor(native_resolution.qwen3_vl, *QWEN, videos.qwen3_vl),
    "qwen3_5": ImageProcessor(native_resolution.qwen3_vl, *QWEN, videos.qwen3_vl),
    "qwen3_5_moe": ImageProcessor(native_resolution.qwen3_vl, *QWEN, videos.qwen3_vl),
    "qwen2_5_omni_thinker": ImageProcessor(native_resolution.qwen2_vl, *OMNI[:2], frozen=OMNI[2]),
    "qwen3_omni_moe_thinker": ImageProcessor(native_resolution.qwen3_vl, *OMNI[:2], frozen=OMNI[2]),
    "mllama": ImageProcessor(fixed_tiles.mllama, "model.vision_model", ("model.multi_modal_projector",)),
    "llama4": ImageProcessor(adaptive_tiles.llama4, "vision_model", ("multi_modal_projector",)),
    "gemma3n": ImageProcessor(
        fixed_tiles.gemma3n,
        "model.vision_tower",
        ("model.embed_vision",),
        "token_type_ids",
        frozen=("model.audio_tower", "model.embed_audio"),
    ),
    "gemma4_unified": ImageProcessor(
        native_resolution.gemma4,
        "model.embed_vision",
        ("model.embed_vision.multimodal_embedder",),
        "mm_token_type_ids",
        frozen=("model.embed_audio",),
    ),
    "gemma4": ImageProcessor(
        native_resolution.gemma4,
        "model.vision_tower",
        ("model.embed_vision",),
        "mm_token_type_ids",
        videos.gemma4,
        ("model.audio_tower", "model.embed_audio"),
    ),
    "phi4_multimodal": ImageProcessor(
        adaptive_tiles.phi4, f"{PHI}.img_processor", tuple(f"{PHI}.{part}" for part in PHI_PROJECTOR)
    ),
    "glm4v": ImageProcessor(native_resolution.glm4v, *QWEN, videos.glm4v),
    "lfm2_vl": ImageProcessor(naflex.lfm2_vl, *LLAVA),
    "minicpmv4_6": ImageProcessor(minicpm.minicpmv, *MINICPM),
    "minicpmv4_7": ImageProcessor(minicpm.minicpmv, *MINICPM, "mm_token_type_ids"),
    "glm46v": ImageProcessor(native_resolution.glm4v, *QWEN),
    "glm4v_moe": ImageProcessor(native_resolution.glm4v, *QWEN, videos.glm4v),
}
"""By transformers' model_type."""

TOWER_MODULES = {
    **IMAGE_PROCESSORS,
    "voxtral": ImageProcessor(fixed_tiles.no_images, "model.audio_tower", LLAVA[1]),
    "qwen2_audio": ImageProcessor(fixed_tiles.no_images, "model.audio_tower", LLAVA[1]),
}
"""All with a tower, those that hear (:mod:`vramplan.inputs.images.sounds`) included."""
PROCESSORS = {**COUNTED, **{model_type: processor.processor for model_type, processor in IMAGE_PROCESSORS.items()}}
"""All whose tokens can be counted, also of models that the analytic estimator does not support."""
VIDEO_PROCESSORS: dict[str, VideoProcessor] = {
    **videos.REMOTE_VIDEO_PROCESSORS,
    **{
        model_type: processor.video for model_type, processor in IMAGE_PROCESSORS.items() if processor.video is not None
    },
}
"""Processors of videos, by model_type."""

USUAL_SIZE = Size(1024, 1024)
"""The default image size: about what a phone's picture is scaled to for a data set."""
USUAL_FRAMES, USUAL_FRAME = 16, Size(640, 360)
"""The default of a video: few frames, as small as data sets store them."""


def process_image(spec: ModelSpec, size: Size, limits: Limits, frames: int | None = None) -> ProcessedImage:
    """Patches and tokens of one image, or of one video of `frames` frames.

    Raises:
        ConfigError: for an image, a video or limits that the processor refuses, and for videos if it takes none.
    """
    if frames is not None:
        return process_video(spec, size, limits, frames)
    config, processor = Config(spec.config, spec.name), Config(spec.processor, f"{spec.name}: preprocessor_config.json")
    return PROCESSORS[spec.model_type](config, processor, size, limits)


def process_video(spec: ModelSpec, size: Size, limits: Limits, frames: int) -> ProcessedImage:
    """Patches and tokens of one video; a video processor without a file of its own reads the image processor's.

    Raises:
        ConfigError: for a video or limits that it refuses, and if there is no video processor.
    """
    if spec.model_type not in VIDEO_PROCESSORS:
        raise ConfigError(
            f"{setting('videos')}: those of {spec.model_type} are not modelled; frames can be given as images"
            f" ({setting('images')}). Those of {', '.join(VIDEO_PROCESSORS)} do"
        )
    settings = spec.video_processor or spec.processor
    config, processor = Config(spec.config, spec.name), Config(settings, f"{spec.name}: video_preprocessor_config.json")
    return VIDEO_PROCESSORS[spec.model_type](config, processor, size, frames, limits)


def processed_image(spec: ModelSpec, job: Job) -> ProcessedImage | None:
    """Patches and tokens of each of the job's images or videos; None for a model without a processor.

    Raises:
        ConfigError: for an image or video that the processor refuses, and for more image tokens than the sequence has.
    """
    kind = f"{job.picture_kind}s"
    if spec.model_type in HEARD:
        return heard(spec.model_type, Config(spec.config, spec.name), job)
    if spec.model_type not in PROCESSORS:
        if job.pictures:
            raise ConfigError(f"{setting(kind, job.pictures)}: {spec.name} takes text alone")
        return None
    size, frames = shown(job)
    limits = Limits(job.min_pixels, job.max_pixels, job.max_tiles)
    image = process_image(spec, size, limits, frames)
    if job.pictures * image.all_tokens > job.sequence_length:
        what = f"{kind} of {size} pixels make" if job.pictures > 1 else f"{kind[:-1]} of {size} pixels makes"
        number = job.pictures if job.pictures > 1 else "a" if job.videos else "an"
        raise ConfigError(
            f"{setting('sequence_length', job.sequence_length)}: {number} {what}"
            f" {job.pictures * image.all_tokens:,} tokens alone (as {image.description}); frameworks stop or cut the"
            f" image tokens off there. Raise {setting('sequence_length')}, or make the {kind[:-1]} smaller"
        )
    return image


def shown(job: Job) -> tuple[Size, int | None]:
    """The size of each image or frame, and the number of these; None for images."""
    if not job.videos:
        return Size(*(job.image_size or USUAL_SIZE)), None
    return Size(*(job.image_size or USUAL_FRAME)), job.frames or USUAL_FRAMES


__all__ = [
    "COUNTED",
    "IMAGE_PROCESSORS",
    "PROCESSORS",
    "TOWER_MODULES",
    "USUAL_FRAME",
    "USUAL_FRAMES",
    "USUAL_SIZE",
    "VIDEO_PROCESSORS",
    "ImageProcessor",
    "Limits",
    "ProcessedImage",
    "Processor",
    "Size",
    "Tensor",
    "process_image",
    "processed_image",
    "shown",
]
