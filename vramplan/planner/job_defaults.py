"""What a job is where nothing is said: the defaults that depend on the method, the card and the model."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from vramplan.analytic.architectures.lookup import architecture_of, is_described
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.inputs import model_inputs
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import COUNTED, IMAGE_PROCESSORS, processed_image
from vramplan.inputs.images.types import image_size
from vramplan.inputs.job import MAX_COUNT, Job, engine_casts, with_current_names
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.sample_lengths import lengths_of

FLAGS = {
    "sequence_length": "--seq-len",
    "target_length": "--target-len",
    "micro_batch_size": "--micro-batch",
    "gradient_accumulation_steps": "--accumulation",
}

TEXT_TOKENS = 128
"""Least room for text beside the images, where no length is given."""
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""Keys that bound the length of a sequence."""


def complete_job(spec: ModelSpec, card: Gpu, given: dict[str, Any]) -> Job:
    """A job from what was given, the rest filled in; keys with None count as not given.

    bf16 weights under bf16 autocast; on a card without bf16, fp16 (trained weights in fp32, since the gradient scaler
    needs that). SDPA, or what the architecture runs by default.

    Raises:
        ConfigError: for a value out of range, naming the flag.
    """
    job = with_current_names({key: value for key, value in given.items() if value is not None})
    if job.get("method") == "qlora":
        job |= {"method": "lora", "quantize": job.get("quantize", "nf4")}
    half = "bf16" if card.supports("bf16") else "fp16"
    for flag in ("dtype", "autocast"):
        if job.get(flag) == "fp8":
            if not card.supports("fp8"):
                raise ConfigError(f"--{flag} fp8: {card.title} has no fp8 units; run --{flag} {half}")
            raise UnsupportedError(f"--{flag} fp8 is not modelled yet; run --{flag} {half}")
    full = job.get("method") == "full"
    unused = [name for name in job if name.startswith("lora_")] if full else []
    if unused:
        raise ConfigError(f"--{unused[0].replace('_', '-')} has no meaning with --method full")
    for name in ("lora_targets", "modules_to_save"):
        if name in job:
            job[name] = _names(job[name])
            if job[name] == ():
                raise ConfigError(f"--{name.replace('_', '-')}: names nothing")
    if "dtype" not in job:
        casts = str(job.get("strategy")).startswith("zero")  # DeepSpeed has fp32 copies of its own
        job["dtype"] = "fp32" if full and half == "fp16" and not casts else half
        if job["dtype"] == "fp32":
            job.setdefault("autocast", half)
    if str(job.get("strategy")).startswith("zero"):  # DeepSpeed casts the model, its optimizer has fp32 copies
        job.setdefault("autocast", "none")
        if engine_casts(job["strategy"], job.get("quantize", "none")):
            job.setdefault("lora_dtype", job["dtype"])
    job.setdefault(
        "autocast",
        job["dtype"] if job["dtype"] in ("bf16", "fp16") and not (full and job["dtype"] == "fp16") else "none",
    )
    if "lora_dtype" not in job and job["dtype"] == "fp32":
        job["lora_dtype"] = "fp32"
    if "lengths" in job:
        job["lengths"] = lengths_of(job["lengths"])
        job.setdefault("sequence_length", max(job["lengths"]))
        if job.get("batches") == "packed":
            raise ConfigError("--lengths with --batches packed: packed rows are all full")
    if "image_size" in job:
        job["image_size"] = image_size(job["image_size"])
    job = model_inputs.complete(spec, job)
    _check_videos(job)
    if spec.model_type in IMAGE_PROCESSORS:
        if not job.get("videos"):
            job.setdefault("images", 1)
        _check_parts(job)
    elif spec.model_type not in model_inputs.MODEL_INPUTS:
        _check_blind(spec, job)
    most = None
    if is_described(spec):
        architecture, config, *_ = architecture_of(spec)
        job.setdefault("attention", "sdpa" if "sdpa" in architecture.attention else architecture.attention[0])
        shape = architecture.shape(config)
        most = shape.positions if shape.hard_limit else None  # a table of positions: the default must fit into it
    else:
        most = next((n for key in POSITIONS if isinstance(n := spec.config.get(key), int) and n > 0), None)
    if most is not None:
        job.setdefault("sequence_length", min(Job.model_fields["sequence_length"].default, most))
    try:
        made = Job.model_validate(job)
    except ValidationError as error:
        raise ConfigError(_said(error)) from error
    if spec.model_type not in IMAGE_PROCESSORS or "sequence_length" in job:
        return made
    return made.model_copy(update={"sequence_length": _length_with_images(spec, made)})


SEEING = ("images", "videos", "frames", "image_size", "min_pixels", "max_pixels", "max_tiles", "vision", "projector")
"""Settings that only models with eyes have."""


def _check_blind(spec: ModelSpec, job: dict[str, Any]) -> None:
    for name in SEEING:
        if job.get(name, Job.model_fields[name].default) != Job.model_fields[name].default:
            said = "x".join(map(str, job[name])) if isinstance(job[name], tuple) else job[name]
            flag = f"--{name.replace('_', '-')} {said}"
            if spec.model_type in COUNTED or "vision_config" in spec.config:
                raise UnsupportedError(
                    f"{flag}: how {spec.model_type} sees is not described yet; known: {', '.join(IMAGE_PROCESSORS)}"
                    + ("; `vramplan images` counts its tokens" if spec.model_type in COUNTED else "")
                )
            raise ConfigError(f"{flag}: {spec.name} takes text alone")


def _check_videos(job: dict[str, Any]) -> None:
    if not job.get("videos"):
        if "frames" in job:
            raise ConfigError(f"--frames {job['frames']}: has no meaning without --videos")
    elif job.get("images"):
        raise UnsupportedError("--images with --videos: images and videos in one sample are not modelled yet")


def _check_parts(job: dict[str, Any]) -> None:
    full = job.get("method") == "full"
    for part in ("vision", "projector"):
        if job.get(part) == ("lora" if full else "train"):
            raise ConfigError(
                f"--{part} {job[part]}: with --method full it is frozen or train"
                if full
                else f"--{part} train: PEFT freezes whatever has no adapter; use --{part} lora, or --method full"
            )


def _length_with_images(spec: ModelSpec, job: Job) -> int:
    """The default length, doubled until the images or videos and some text fit."""
    length = job.sequence_length
    found = processed_image(spec, job.model_copy(update={"sequence_length": MAX_COUNT}))
    while found is not None and length < job.pictures * found.all_tokens + TEXT_TOKENS:
        length *= 2
    return length


def _names(given: Any) -> Any:
    """Names of layers however they are given: a list, a tuple, or one string with commas; all-linear is None."""
    if isinstance(given, str):
        names = tuple(name.strip() for name in given.split(",") if name.strip())
        return None if names == ("all-linear",) else names
    return tuple(given) if isinstance(given, list) else given


def _said(error: ValidationError) -> str:
    """The first thing wrong, in words of the command line."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "job"
    flag = FLAGS.get(name, "--" + name.replace("_", "-"))
    if first["type"] == "extra_forbidden":
        return f"{name}: no such setting; known: {', '.join(sorted(Job.model_fields))}"
    said = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    if name == "method":
        said = said.replace("'full',", "'full', 'qlora',")  # which stands for two fields
    return f"{flag} {first.get('input')!r}: {said}"
