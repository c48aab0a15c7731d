"""A plan in a framework's own words, read again as that framework reads them."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from vramplan.errors import UnsupportedError
from vramplan.frameworks.detect import DetectedConfig, from_words
from vramplan.frameworks.registry import Framework
from vramplan.frameworks.settings import ConfigSource, ConfigValue
from vramplan.frameworks.syntax import shell
from vramplan.frameworks.write import ConfigText, changed_fields, find_writer, write
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import IMAGE_PROCESSORS, processed_image
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import MODEL_INPUTS
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.calibration import CONFIDENCE
from vramplan.planner import check, estimate
from vramplan.units import GiB

OF_THE_DATA = ("images", "videos", "frames", "image_size", "target_length")
"""What no configuration says."""
BATCH = ("micro_batch_size", "gradient_accumulation_steps")
SCALED = "fp16"
"""The key that a warning about fp16's gradient scaler is told under, which is passed on."""


class ExportedPlan(NamedTuple):
    """A job in a framework's own words."""

    text: str
    taken: dict[str, Any]
    """The job as that framework, reading them, takes it."""
    notes: list[str]
    """What it takes otherwise, or cannot be told."""
    fits: bool = True
    """Whether it fits that way."""


def planned(
    framework: str, model: str | ModelSpec, job: Job, card: Gpu, *, confidence: float = CONFIDENCE
) -> ExportedPlan:
    """A plan to paste that fits as the framework takes it; where the one asked for does not, another micro-batch.

    Raises:
        VramplanError: for what it cannot be told.
    """
    spec = estimate.load_model(model)
    first = pasted(framework, spec, job)
    if not find_writer(framework)[1].writes_whole_job:  # not a whole job: nothing to judge by
        return first
    one = estimate.estimate(spec, card, confidence=confidence, **first.taken)
    if one.fits:
        return first
    said = f"as {framework} takes it, micro-batch {job.micro_batch_size} needs {one.device_total_bytes / GiB:.1f}"
    said += f" of {one.capacity_bytes / GiB:.1f} GiB"
    rest = {name: value for name, value in first.taken.items() if name not in BATCH}
    found = estimate.suggest(spec, card, job.global_batch_size, advice=False, confidence=confidence, **rest).recommended
    other = None if found is None else pasted(framework, spec, found.estimate.job, job)
    if other is None or not estimate.estimate(spec, card, confidence=confidence, **other.taken).fits:
        return first._replace(notes=[*first.notes, f"{said}, and no other fits either"], fits=False)
    return other._replace(notes=[*other.notes, f"{said}: planned anew"])


def pasted(framework: str, model: str | ModelSpec, job: Job, asked: Job | None = None) -> ExportedPlan:
    """A job in a framework's own words; `asked` is what it is compared with, where that is another.

    Raises:
        UnsupportedError: for a framework that nothing is written for.
    """
    spec, asked = estimate.load_model(model), asked or job
    if spec.model_type in MODEL_INPUTS:
        raise UnsupportedError(
            f"--for {framework}: it is written for causal language models, not for {spec.model_type}"
        )
    ported = f"{spec.name}-hf"  # transformers' own class, where the name itself brings code of its own
    reader, writer = find_writer(framework)
    name = ported if writer.uses_ported_model and ported in spec.aliases else spec.name
    written, package = write(framework, name, job), reader.name
    reading = check.read(_as_written(written, reader, job, spec), job.num_gpus)
    data = {name: getattr(job, name) for name in OF_THE_DATA if name in job.model_fields_set}
    taken = check.settled(spec, reading, reading.job | data)
    again, sees = Job(**taken), spec.model_type in IMAGE_PROCESSORS
    notes = [
        f"{package} takes {field} as {attrgetter(field)(again)}, not {attrgetter(field)(asked)}"
        for field in changed_fields(writer, asked, again)
        if not (sees and field in ("max_pixels", "max_tiles"))  # which may be said in another way
        and not (job is not asked and field in BATCH)
    ]
    pictures = [processed_image(spec, one) for one in (again, asked)] if sees else []
    theirs, ours = (0 if one is None else one.all_tokens for one in pictures or (None, None))
    if theirs != ours:
        notes.append(f"{package} makes {theirs:,} tokens of an image, not {ours:,}")
    notes += [f"{note.key} {note.text}" for note in reading.notes if note.key == SCALED]
    return ExportedPlan(str(written), taken, notes)


def _as_written(written: ConfigText, framework: Framework, job: Job, spec: ModelSpec) -> DetectedConfig:
    """What was written, as its reader finds it."""
    if not written.file:
        (command,) = shell.commands(str(written), "--for", {})
        words = [f"{name}={value}" for name, value in command.environment.items()] + command.words
        found = from_words(words, None, {})
        return found._replace(source=replace(found.source, model=spec))
    settings = {key: ConfigValue(value, f"--{key}") for key, value in written.pairs.items()}
    if written.launcher:
        settings[written.launcher] = ConfigValue(job.num_gpus, f"--{written.launcher}")
    environment = {key: ConfigValue(value, key) for key, value in written.variables.items()}
    return DetectedConfig(framework, ConfigSource(settings, environment, model=spec))
