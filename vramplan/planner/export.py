"""A plan in a framework's own words, read again as that framework reads them."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from vramplan.errors import UnsupportedError, setting
from vramplan.frameworks.detect import from_text, from_words
from vramplan.frameworks.detected_config import DetectedConfig
from vramplan.frameworks.registry import Framework
from vramplan.frameworks.settings import ConfigSource, ConfigValue
from vramplan.frameworks.syntax import shell
from vramplan.frameworks.write import ConfigText, changed_fields, check_task, find_writer, write
from vramplan.frameworks.writers import nodes
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import IMAGE_PROCESSORS, processed_image
from vramplan.inputs.job import Job
from vramplan.inputs.load import load_gpu, load_model
from vramplan.inputs.model_inputs import MODEL_INPUTS
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.tasks import RERANKERS, head_of
from vramplan.memory.calibration import CONFIDENCE
from vramplan.planner import check
from vramplan.planner.estimate import estimate
from vramplan.planner.read_config import complete_with_model, with_prompt
from vramplan.planner.suggest import suggest
from vramplan.units import GiB

DATA_FIELDS = ("images", "videos", "frames", "image_size", "target_length", "audio_seconds")
"""What no configuration says."""
BATCH = ("micro_batch_size", "gradient_accumulation_steps")
SCALED = "fp16"
"""The key that a warning about fp16's gradient scaler is told under, which is passed on."""


class ExportedPlan(NamedTuple):
    """A job in a framework's own words."""

    text: str
    settings: dict[str, Any]
    """The job as that framework, reading them, takes it."""
    notes: list[str]
    """What it takes otherwise, or cannot be told."""
    fits: bool = True
    """Whether it fits that way."""


def export(
    framework: str, model: str | ModelSpec, job: Job, gpu: str | Gpu, *, confidence: float = CONFIDENCE
) -> ExportedPlan:
    """A plan as text to paste, checked as the framework will read it; another micro-batch if it does not fit so.

    Raises:
        VramplanError: for settings that the framework cannot express.
    """
    spec, gpu = load_model(model), load_gpu(gpu)
    first, differs = _written(framework, spec, job, job)
    if not find_writer(framework)[1].writes_whole_job:  # it does not hold a whole job: there is nothing to check
        return first
    as_read = estimate(spec, gpu, confidence=confidence, **first.settings)
    why = (
        f"as {framework} takes it, micro-batch {job.micro_batch_size} needs"
        f" {as_read.device_total_bytes / GiB:.1f} of {as_read.capacity_bytes / GiB:.1f} GiB"
    )
    if as_read.fits:
        return first._replace(notes=[*first.notes, f"{why} and fits"]) if differs else first
    rest = {name: value for name, value in first.settings.items() if name not in BATCH}
    plan = suggest(spec, gpu, job.global_batch_size, advice=False, confidence=confidence, **rest).recommended
    second = None if plan is None else written_as(framework, spec, plan.estimate.job, job)
    if second is None or not estimate(spec, gpu, confidence=confidence, **second.settings).fits:
        differences = [note for note in first.notes if note not in nodes.notes(job)]  # nothing is run
        return first._replace(notes=[*differences, f"{why}, and no other fits either"], fits=False)
    return second._replace(notes=[*second.notes, f"{why}: planned again"])


def written_as(framework: str, model: str | ModelSpec, job: Job, requested: Job | None = None) -> ExportedPlan:
    """A job in a framework's own settings; notes say how it differs from the `requested` job when it is read again.

    Raises:
        UnsupportedError: for a framework or a model without a writer.
    """
    return _written(framework, load_model(model), job, requested or job)[0]


def _written(framework: str, spec: ModelSpec, job: Job, requested: Job) -> tuple[ExportedPlan, bool]:
    """The same, and whether the framework takes another job than is requested."""
    reader, writer = find_writer(framework)
    check_task(framework, job)
    samples = MODEL_INPUTS.get(spec.model_type)
    if samples is not None and (job.task is None or samples.hears):
        raise UnsupportedError(
            f"{setting('for_framework', framework)}: configurations are written for causal language models, not for"
            f" {spec.model_type}"
        )
    ported = f"{spec.name}-hf"  # transformers' own class, if the name itself brings code of its own
    name = ported if writer.uses_ported_model and ported in spec.aliases else spec.name
    text, package = write(framework, name, job), reader.name
    config = check.read(_as_written(text, reader, job, spec), job.num_gpus)
    data = {name: getattr(job, name) for name in DATA_FIELDS if name in job.model_fields_set}
    if job.task in ("embedding", *RERANKERS):
        data["negatives"] = job.negatives
    if config.completion_length is not None:
        data["sequence_length"] = job.sequence_length
    settings = with_prompt(config, complete_with_model(spec, config, config.job | data))
    as_read, takes_images = Job(**settings), spec.model_type in IMAGE_PROCESSORS
    differences = [
        f"{package} takes {field} as {attrgetter(field)(as_read)}, not {attrgetter(field)(requested)}"
        for field in changed_fields(writer, requested, as_read)
        if not (takes_images and field in ("max_pixels", "max_tiles"))  # which may be expressed in another way
        and not (field == "modules_to_save" and requested.modules_to_save == (head_of(spec.model_type, job.task),))
        and not (job is not requested and field in BATCH)
    ]
    images = [processed_image(spec, version) for version in (as_read, requested)] if takes_images else [None, None]
    tokens, requested_tokens = (0 if image is None else image.all_tokens for image in images)
    if tokens != requested_tokens:
        differences.append(f"{package} makes {tokens:,} tokens of an image, not {requested_tokens:,}")
    notes = [*differences, *(f"{note.key} {note.text}" for note in config.notes if note.key == SCALED)]
    return ExportedPlan(str(text), settings, [*notes, *text.notes]), bool(differences)


def _as_written(written: ConfigText, framework: Framework, job: Job, spec: ModelSpec) -> DetectedConfig:
    """What was written, as its reader finds it."""
    if not written.file:
        (command,) = shell.commands(str(written), "--for", {})
        words = [f"{name}={value}" for name, value in command.environment.items()] + command.words
        found = from_words(words, None, {})
        return found._replace(source=replace(found.source, model=spec))
    if written.file.endswith(".py") and not written.pairs:
        found = from_text(written.body, Path(written.file), None, {})
        settings = {key: ConfigValue(count, f"--{key}") for key, count in written.launcher.items()}
        source = replace(found.source, settings={**found.source.settings, **settings}, model=spec)
        return found._replace(source=source)
    settings = {key: ConfigValue(value, f"--{key}") for key, value in written.pairs.items()}
    settings |= {key: ConfigValue(count, f"--{key}") for key, count in written.launcher.items()}
    environment = {key: ConfigValue(value, key) for key, value in written.variables.items()}
    program = " ".join(written.command.split()[:2])  # which says the task: trl dpo
    return DetectedConfig(framework, ConfigSource(settings, environment, model=spec, program=program))
