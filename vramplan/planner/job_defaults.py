"""A complete job from a few settings: the defaults that depend on the method, the GPU and the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from vramplan.analytic.architectures.lookup import architecture_of, is_described
from vramplan.errors import ConfigError, UnknownNameError, UnsupportedError, name_settings, nearest_names, setting
from vramplan.inputs import model_inputs
from vramplan.inputs.former_names import with_current_names
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.image_task_rules import is_compared
from vramplan.inputs.images import COUNTED, IMAGE_PROCESSORS, processed_image
from vramplan.inputs.images.sounds import HEARD
from vramplan.inputs.images.types import image_size
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import FUSED_KERNELS, MAX_COUNT, ROLLOUTS, engine_casts
from vramplan.inputs.load import OTHER_MODELS, name_of_other_model
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.sample_lengths import lengths_of
from vramplan.inputs.sequence_length import default_sequence_length, max_positions
from vramplan.inputs.task_rules import ODDS, OF_FRAMEWORKS, PREFERENCE, PREFERENCE_LOSSES, TRL_TASKS
from vramplan.inputs.tasks import head_of
from vramplan.inputs.usual_names import UNKNOWN_VALUES

if TYPE_CHECKING:
    from pydantic import ValidationError

    from vramplan.inputs.job_values import Task

MIN_TEXT_TOKENS = 128
"""Least tokens of text beside the images if no length is given."""


def complete_job(spec: ModelSpec, gpu: Gpu, settings: dict[str, Any]) -> Job:
    """A complete job from the settings that were given; a setting of None counts as not given.

    Weights are bf16 under bf16 autocast; on a GPU without bf16, fp16 (trained weights fp32, which the gradient scaler
    needs). Attention is SDPA, or what transformers runs the architecture with by default.

    Raises:
        ConfigError: if a value is out of range, or contradicts another.
    """
    job = with_current_names({name: value for name, value in settings.items() if value is not None})
    if job.get("method") == "qlora":
        job |= {"method": "lora", "quantize": job.get("quantize", "nf4")}
    half = "bf16" if gpu.supports("bf16") else "fp16"
    _check_fp8(job, gpu, half)
    if job.get("method") == "full":
        for name in job:
            if name.startswith("lora_"):
                raise ConfigError(f"{setting(name)} has no meaning with {setting('method', 'full')}")
    for name in ("lora_targets", "modules_to_save"):
        if name in job:
            job[name] = _module_names(job[name])
            if job[name] == ():
                raise ConfigError(f"{setting(name)}: no module is named")
    if "fused_kernels" in job:
        job["fused_kernels"] = _kernel_names(job["fused_kernels"])
    if job.get("task") == "ppo" and "value_model" in job:
        job.setdefault("checkpointing", "none")  # TRL never switches it on
        job.setdefault("autocast", "none")  # transformers 5 leaves it to accelerate's launcher (training_args.py)
    if job.get("task") == "gkd" and job.get("loss") == "chunked":
        job.setdefault("autocast", "none")  # TRL's DistillationTrainer calls the models below what autocast wraps
    _complete_dtypes(job, half)
    for field in OTHER_MODELS:
        if job.get(field) is not None:
            job[field] = name_of_other_model(field, job[field])
    if job.get("task") in ROLLOUTS:
        job.setdefault("loss", "chunked")  # TRL 1.16
        job.setdefault("batches", "padded")  # completions differ in length
    if job.get("task") == "ppo":
        job.setdefault("batches", "padded")
    if job.get("task") == "rloo":
        job.setdefault("num_generations", 2)  # TRL's default
    if job.get("task") == "gkd":
        job.setdefault("batches", "padded")
    if job.get("task") in TRL_TASKS and job["task"] not in ODDS and job.get("quantize", "none") != "none":
        job.setdefault("lora_dtype", "bf16")  # TRL 1.16 casts the adapters of a quantized model
    if job.get("task") == "kto":
        job.setdefault("micro_batch_size", 2)  # the smallest that TRL takes
    prefers = job.get("task") in (*PREFERENCE, *ROLLOUTS)
    if prefers and job.get("strategy") == "zero3" and job.get("method") != "full":
        if job.get("loss") not in OF_FRAMEWORKS:
            job.setdefault("lora_dtype", half)  # TRL 1.16: autocast_adapter_dtype=False
        if job["task"] not in ODDS:  # those leave it to transformers
            job.setdefault("reentrant", job.get("checkpointing", "full") == "full")  # TRL's and those of frameworks
    if job.get("task") in PREFERENCE_LOSSES:
        job.setdefault("loss", PREFERENCE_LOSSES[job["task"]][0])
    if job.get("strategy") == "zero3" and isinstance(job.get("zero", {}), dict):
        job["zero"] = {"overlap_comm": True, **job.get("zero", {})}  # DeepSpeed's default at stage 3 (zero/config.py)
    if "lengths" in job:
        job["lengths"] = lengths_of(job["lengths"])
        job.setdefault("sequence_length", max(job["lengths"]))
        if job.get("batches") == "packed":
            raise ConfigError(name_settings("{lengths} with {batches=packed}: packed rows are all full"))
    if "image_size" in job:
        job["image_size"] = image_size(job["image_size"])
    job = model_inputs.complete(spec, job)
    head = head_of(spec.model_type, cast("Task | None", job.get("task")))
    if head is not None and job.get("method") != "full":
        job.setdefault("modules_to_save", (head,))  # PEFT's task types SEQ_CLS and TOKEN_CLS
    _check_videos(job)
    if spec.model_type in HEARD:
        _check_heard(spec, job)
        job.setdefault("sounds", 1)
        _check_parts(job)
    elif spec.model_type in IMAGE_PROCESSORS:
        if job.get("sounds"):
            raise ConfigError(f"{setting('sounds', job['sounds'])}: {spec.name} takes no sounds")
        if not job.get("videos"):
            job.setdefault("images", 0 if is_text_only(spec) else 1)
        _check_parts(job)
    elif spec.model_type not in model_inputs.MODEL_INPUTS:
        _check_text_only(spec, job)
    if is_described(spec):
        architecture, config, *_ = architecture_of(spec)
        if not architecture.checkpoints or (architecture.hook_stops and job.get("method") != "full"):
            job.setdefault("checkpointing", "none")
        usual = "eager" if gpu.vendor == "Apple" else "sdpa"  # validation.py: check_apple
        job.setdefault("attention", usual if usual in architecture.attention else architecture.attention[0])
        shape = architecture.shape(config)
        positions = shape.positions if shape.hard_limit else None
    else:
        positions = max_positions(spec)
    has_length = "sequence_length" in job
    if positions is not None:
        job.setdefault("sequence_length", default_sequence_length(positions))
    try:
        complete = Job.model_validate(job)
    except ValueError as error:  # of which pydantic's is one
        raise ConfigError(_first_error(cast("ValidationError", error))) from error
    if not is_compared(complete, spec.model_type):
        raise UnsupportedError(
            name_settings(
                f"{{task}} {{loss}} with images of {spec.model_type} was not compared with a run of"
                f" {'verl' if complete.runs_verl else 'ms-swift'}; use {{loss=chunked}}, TRL's own trainer",
                complete,
            )
        )
    if spec.model_type not in IMAGE_PROCESSORS or has_length:
        return complete
    return complete.model_copy(update={"sequence_length": _length_with_images(spec, complete)})


def _check_fp8(job: dict[str, Any], gpu: Gpu, half: str) -> None:
    for name in ("dtype", "autocast"):
        if job.get(name) == "fp8":
            way_out = f"run {setting(name, half)}"
            if not gpu.supports("fp8"):
                raise ConfigError(f"{setting(name, 'fp8')}: {gpu.title} has no fp8 units; {way_out}")
            raise UnsupportedError(f"{setting(name, 'fp8')} is not modelled yet; {way_out}")


def _complete_dtypes(job: dict[str, Any], half: str) -> None:
    """Fill in the dtypes of weights, autocast and adapters; `half` is what the GPU computes in."""
    full, zero = job.get("method") == "full", str(job.get("strategy")).startswith("zero")
    if "dtype" not in job:
        job["dtype"] = "fp32" if full and half == "fp16" and not zero else half
        if job["dtype"] == "fp32":
            job.setdefault("autocast", half)
    if zero:  # DeepSpeed casts the model, its optimizer has fp32 copies
        job.setdefault("autocast", "none")
        if engine_casts(job["strategy"], job.get("quantize", "none")):
            job.setdefault("lora_dtype", job["dtype"])
    scaled = full and job["dtype"] == "fp16"
    job.setdefault("autocast", job["dtype"] if job["dtype"] in ("bf16", "fp16") and not scaled else "none")
    if "lora_dtype" not in job and job["dtype"] == "fp32":
        job["lora_dtype"] = "fp32"


VISION_SETTINGS = (
    "images",
    "videos",
    "sounds",
    "frames",
    "image_size",
    "min_pixels",
    "max_pixels",
    "max_tiles",
    "vision",
    "projector",
)
"""Settings that only vision-language models have."""


def is_text_only(spec: ModelSpec) -> bool:
    """Whether a model that sees is modelled on text alone."""
    tower = architecture_of(spec).tower if is_described(spec) else None
    return tower is not None and tower.text_only


def _check_text_only(spec: ModelSpec, job: dict[str, Any]) -> None:
    for name in VISION_SETTINGS:
        default = Job.model_fields[name].default
        if job.get(name, default) == default:
            continue
        if spec.model_type in COUNTED or "vision_config" in spec.config:
            raise UnsupportedError(
                f"{setting(name, job[name])}: the vision tower of {spec.model_type} is not modelled yet; modelled are"
                f" {', '.join(IMAGE_PROCESSORS)}"
                + ("; `vramplan images` counts its image tokens" if spec.model_type in COUNTED else "")
            )
        raise ConfigError(f"{setting(name, job[name])}: {spec.name} takes text alone")


def _check_heard(spec: ModelSpec, job: dict[str, Any]) -> None:
    """Refuse images of a model that hears, and tasks in which sounds are not modelled."""
    for name in ("images", "videos", "frames", "image_size", "min_pixels", "max_pixels", "max_tiles"):
        if job.get(name):
            raise ConfigError(f"{setting(name, job[name])}: {spec.name} takes sounds, and no images")
    if job.get("task") and job.get("sounds", 1):
        raise UnsupportedError(
            f'{setting("task", job["task"])}: not modelled yet with sounds; text alone is {{"sounds": 0}} in a job'
        )


def _check_videos(job: dict[str, Any]) -> None:
    if not job.get("videos"):
        if "frames" in job:
            raise ConfigError(f"{setting('frames', job['frames'])} has no meaning without {setting('videos')}")
    elif job.get("images"):
        raise UnsupportedError(
            name_settings("{images} with {videos}: images and videos in one sample are not modelled yet")
        )


def _check_parts(job: dict[str, Any]) -> None:
    full = job.get("method") == "full"
    for part in ("vision", "projector"):
        if full and job.get(part) == "lora":
            raise ConfigError(f"{setting(part, 'lora')}: with {setting('method', 'full')} it is frozen or train")
        if not full and job.get(part) == "train":
            raise ConfigError(
                f"{setting(part, 'train')}: PEFT freezes all weights without an adapter; use {setting(part, 'lora')},"
                f" or {setting('method', 'full')}"
            )


def _length_with_images(spec: ModelSpec, job: Job) -> int:
    """The default length, doubled until the images or videos and some text fit."""
    length = job.sequence_length
    image = processed_image(spec, job.model_copy(update={"sequence_length": MAX_COUNT}))
    while image is not None and length < job.pictures * image.all_tokens + MIN_TEXT_TOKENS:
        length *= 2
    return length


def _module_names(names: Any) -> Any:
    """Names of modules from a list, a tuple, or one string with commas; all-linear is None."""
    if isinstance(names, str):
        listed = tuple(name.strip() for name in names.split(",") if name.strip())
        return None if listed == ("all-linear",) else listed
    return tuple(names) if isinstance(names, list) else names


def _kernel_names(names: Any) -> Any:
    """Kernels in the order of the job's field from their names; all and none stand for themselves."""
    listed = _module_names(names)
    if listed in (("all",), ("none",)):
        return FUSED_KERNELS if listed == ("all",) else ()
    if not isinstance(listed, tuple):
        return listed
    for name in listed:
        if name not in FUSED_KERNELS:
            raise UnknownNameError("fused kernel", str(name), FUSED_KERNELS, f"known: {', '.join(FUSED_KERNELS)}")
    return tuple(name for name in FUSED_KERNELS if name in listed)


def _first_error(error: ValidationError) -> str:
    """The first invalid field that pydantic reports, as one message."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "job"
    if first["type"] == "extra_forbidden":
        nearest = ", ".join(nearest_names(name, Job.model_fields))
        meant = f"; did you mean {nearest}?" if nearest else ";"
        return f"{name}: no such setting{meant} known: {', '.join(sorted(Job.model_fields))}"
    expected = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    if name == "method":
        expected = expected.replace("'full',", "'full', 'qlora',")  # short for lora with quantize nf4
    value = first.get("input")
    if isinstance(value, str) and (name, value) in UNKNOWN_VALUES:
        return f"{setting(name, value)}: {name_settings(UNKNOWN_VALUES[name, value])}"
    return f"{setting(name, repr(value))}: {expected}"
