"""Will the configuration that is already there fit, and what would make it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from vramplan.analytic.estimator import listed_layers
from vramplan.errors import (
    CannotRunError,
    ConfigError,
    HubError,
    UnknownNameError,
    UnsupportedError,
    VramplanError,
)
from vramplan.frameworks.detect import DetectedConfig, from_path, from_words, note_unread_variables
from vramplan.frameworks.known_keys import known_keys
from vramplan.frameworks.parsed_config import (
    ParsedConfig,
    allocator_settings,
    note_fp16_scaler,
    note_replicated_weights,
    note_requires_grad,
)
from vramplan.frameworks.readers import image_limits, video_sampling, zero_config
from vramplan.frameworks.registry import FRAMEWORKS
from vramplan.frameworks.settings import ConfigReader, Note
from vramplan.frameworks.syntax.argv import in_sections
from vramplan.inputs.catalog import find_model
from vramplan.inputs.dataset import Lengths
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import IMAGE_PROCESSORS, processed_image
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.validation import LINEAR_EXPERTS
from vramplan.memory.calibration import CONFIDENCE, with_margin
from vramplan.memory.estimate import Estimate
from vramplan.planner import dataset_limits
from vramplan.planner import estimate as api
from vramplan.planner.config_levers import MOST_TRIES, Counsel, counsels, reserve_headroom
from vramplan.planner.job_defaults import FLAGS, POSITIONS
from vramplan.planner.monotone_search import largest
from vramplan.planner.suggest import Plan, Search
from vramplan.progress import Progress, silent

CACHED = (
    "the longest sample alone would fit; with what samples of other lengths leave in torch's cache before it does not:"
    " set PYTORCH_ALLOC_CONF=expandable_segments:True"
)
"""Why a data set does not fit whose longest sample would."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a configuration needs of a card."""

    reading: ParsedConfig
    card: Gpu
    estimate: Estimate
    """Of training."""
    evaluation_bytes: int | None
    """On the card while the configuration's own evaluation batch runs; None where none does."""
    search: Search | None
    """Plans for the same global batch, where this one does not fit."""
    min_headroom: float
    """Share of the card that has to stay free, if that is more than the margin."""
    data: dataset_limits.Data | None = None
    """The data set that it trains on, where one was given."""
    plan: Plan | None = None
    """Another micro-batch at the same global batch that fits, where this one does not."""
    advice: tuple[Counsel, ...] = ()
    """Where no micro-batch does: changes of something else."""
    eval_batch_size: int | None = None
    """A smaller batch of an evaluation that fits, where this one does not; 0 where none does."""

    @property
    def need_bytes(self) -> int:
        """At the worst moment."""
        return max(self.estimate.device_total_bytes, self.evaluation_bytes or 0)

    @property
    def free_bytes(self) -> int:
        """Left of the card at the worst moment; negative where it does not fit."""
        return self.estimate.capacity_bytes - self.need_bytes

    @property
    def spare_bytes(self) -> int:
        """What has to stay free: the margin, or more that was asked for."""
        return max(self.estimate.margin_bytes, ceil(self.min_headroom * self.estimate.capacity_bytes))

    @property
    def trains(self) -> bool:
        """Whether training fits, whatever an evaluation needs."""
        return self.estimate.fits and self.estimate.headroom_bytes >= self.spare_bytes

    @property
    def fits(self) -> bool:
        """Whether the worst moment fits, with the margin and what was asked for left free."""
        return self.trains and self.free_bytes >= self.spare_bytes


def check(
    target: str | Path | Sequence[str],
    gpu: str | Gpu = "auto",
    *,
    num_gpus: int = 1,
    model: str | ModelSpec | None = None,
    framework: str | None = None,
    framework_version: str | None = None,
    min_headroom: float = 0.0,
    confidence: float = CONFIDENCE,
    progress: Progress = silent,
    **given: Any,
) -> Verdict:
    """Read a configuration file, a script or the words of a command, and say whether it fits.

    `num_gpus` is how many cards the box has; `given` is what the configuration does not know: `sequence_length` of the
    longest sample, `images`, `videos`, `frames`, `image_size`, or `dataset`, a file of samples, with a `tokenizer`; and
    `method` and `checkpointing` of what DeepSpeed's JSON is used with.

    Raises:
        VramplanError: for what cannot be read, or is not modelled.
    """
    card = api.load_gpu(gpu)
    if isinstance(target, (str, Path)):
        found = from_path(Path(target), framework, gpu=card)
    else:
        found = from_words(target, framework, gpu=card)
    return examine(
        found,
        card,
        num_gpus=num_gpus,
        model=model,
        framework_version=framework_version,
        min_headroom=min_headroom,
        confidence=confidence,
        progress=progress,
        **given,
    )


def examine(
    found: DetectedConfig,
    gpu: str | Gpu,
    *,
    num_gpus: int = 1,
    model: str | ModelSpec | None = None,
    framework_version: str | None = None,
    **given: Any,
) -> Verdict:
    """The same of what was found in a file or a command; `given` as :func:`judge` takes it.

    Raises:
        VramplanError: for what cannot be read, or is not modelled.
    """
    card = api.load_gpu(gpu)
    reading = read(found, num_gpus, framework_version)
    spec = _model(model if model is not None else reading.model, reading, found)
    if spec.published_dtype not in (None, "bf16"):  # which may decide what it is loaded in
        told = [note for note in reading.notes if note.key == "model"]
        reading = read(found._replace(source=replace(found.source, model=spec)), num_gpus, framework_version)
        reading.notes += told
    try:
        return judge(reading, spec, card, **given)
    except (ConfigError, UnknownNameError, UnsupportedError) as error:
        said = _in_its_words(str(error), reading)
        if reading.job.get("strategy") == "device_map":
            spread = f"one process that sees {reading.job['num_gpus']} cards and spreads the model over them"
            said = said.replace("--strategy device_map", spread).replace("use ddp or zero2", "start one for each card")
        if isinstance(error, CannotRunError):
            words = reading.say(error.update)
            said = f"{error.why}; " + (f"write {', '.join(words)}" if words else "no setting of its own changes that")
        error.args = (said if found.source.where in said else f"{found.source.where}: {said}",)
        raise


def _in_its_words(said: str, reading: ParsedConfig) -> str:
    """An error's flags as the keys that the configuration has."""
    for field, flag in FLAGS.items():
        key = reading.names.get(field)
        if isinstance(key, str):
            said = said.replace(f"{flag} ", f"{key} ")
    return said


def judge(
    reading: ParsedConfig,
    spec: ModelSpec,
    gpu: str | Gpu,
    *,
    min_headroom: float = 0.0,
    confidence: float = CONFIDENCE,
    progress: Progress = silent,
    look_further: bool = True,
    dataset: str | Path | Lengths | None = None,
    tokenizer: str | None = None,
    sequence_length: int | None = None,
    **given: Any,
) -> Verdict:
    """Whether what a configuration comes to fits; where not, plans for the same global batch, if they are wanted.

    Raises:
        VramplanError: for what cannot run, or is not modelled.
    """
    card = api.load_gpu(gpu)
    job = {**reading.job, **{name: value for name, value in given.items() if value is not None}}
    if dataset is not None:
        job.setdefault("sequence_length", _most_positions(spec))
    if sequence_length is not None:
        job["sequence_length"] = min(sequence_length, job.get("sequence_length", sequence_length))
    job, data = settled(spec, reading, job), None
    if dataset is not None:
        lengths = dataset_limits.lengths_of(dataset, spec, tokenizer, progress)
        data, job = dataset_limits.applied(lengths, spec, card, reading, job, given)

    def evaluated(trained: Estimate, sized: dict[str, Any], size: int | None) -> int | None:
        """Bytes on the card in an evaluation's forward: no checkpointing helps there, logits are whole."""
        if size is None:
            return None
        one = trained
        if size != sized["micro_batch_size"]:
            one = api.estimate(spec, card, confidence=confidence, **{**sized, "micro_batch_size": size})
        return one.evaluation_bytes + trained.device_total_bytes - trained.peak_reserved_bytes

    @cache
    def at(length: int, others: tuple[int, ...] | None = None) -> Verdict:
        sized = {**job, "sequence_length": length, "lengths": others}
        estimate = api.estimate(spec, card, confidence=confidence, progress=progress, **sized)
        evaluation = evaluated(estimate, sized, reading.eval_batch_size)
        return Verdict(reading, with_margin(card, confidence), estimate, evaluation, None, min_headroom, data)

    others = data.drawn if data is not None and job.get("batches") != "packed" else None
    verdict = at(job["sequence_length"], others)
    if others is not None and not verdict.fits and at(job["sequence_length"]).fits:
        reading.notes.insert(0, Note("warning", "lengths", CACHED))
    if data is not None and look_further:

        def need(length: int) -> tuple[int, bool]:
            progress(f"samples of {length:,} tokens", 0.5)
            return at(length).need_bytes, at(length).fits

        verdict = replace(verdict, data=dataset_limits.compared(data, job, need))
    if verdict.fits or not look_further:
        return verdict
    one, size = verdict.estimate, reading.eval_batch_size or 0
    most = one.capacity_bytes - verdict.spare_bytes
    if (verdict.evaluation_bytes or 0) > most:

        def spared(fewer: int) -> bool:
            return (evaluated(one, job, fewer) or 0) <= most

        smaller, _ = largest(max(1, size // 2), spared, MOST_TRIES, size - 1) if size > 1 else (0, True)
        verdict = replace(verdict, eval_batch_size=smaller)
        if verdict.trains and smaller:
            return verdict
    free = {
        name: value for name, value in job.items() if name not in ("micro_batch_size", "gradient_accumulation_steps")
    }
    room = reserve_headroom(card, one, verdict.spare_bytes)
    search = api.suggest(spec, room, one.job.global_batch_size, confidence=confidence, progress=progress, **free)
    plan = search.recommended
    if plan is not None:  # where it is the same: what torch would give back on a fuller card
        other = plan if plan.micro_batch_size != one.micro_batch_size else None
        return replace(verdict, search=search, plan=other)
    picture = processed_image(spec, one.job) if spec.model_type in IMAGE_PROCESSORS else None
    shortest = one.job.pictures * picture.all_tokens if picture is not None else 0

    def changed(update: dict[str, Any]) -> Estimate:
        return api.estimate(spec, card, confidence=confidence, progress=progress, **{**job, **update})

    advice = counsels(reading, search, changed, shortest, verdict.spare_bytes)
    return replace(verdict, search=search, advice=tuple(advice))


def read(found: DetectedConfig, cards: int, version: str | None = None) -> ParsedConfig:
    """What a configuration comes to on a box with so many cards, with a note for all that a reader should know.

    Raises:
        VramplanError: for a value that cannot be, or a setting that is not modelled.
    """
    if version is not None and not re.match(r"\d+(\.\d+)*", version):
        raise ConfigError(f"--framework-version {version}: expected a version such as 4.57.6")
    framework = found.framework
    config = ConfigReader(
        in_sections(found.source) if framework.in_sections else found.source, framework.name, framework.inherits
    )
    reading = framework.read(config, cards, version)
    reading.synonyms = config.synonyms
    _agree(config, reading.job)
    reading.job |= allocator_settings(config, reading.expandable)
    note_replicated_weights(config, reading.job)
    note_fp16_scaler(config, reading.job)
    note_requires_grad(config)
    zero_config.cast(reading.job)
    reading.spelling = found.source.spelling
    for name in reading.video_sampling.keys:
        config.note("ignored", name, "is about videos; --videos says that there are any")
    config.note_unread_keys(known_keys(framework.name, framework.inherits), framework.unknown_key)
    note_unread_variables(config)
    reading.notes = sorted(config.notes, key=lambda note: ("unknown", "warning", "default", "ignored").index(note.kind))
    return reading


def _agree(config: ConfigReader, job: dict[str, Any]) -> None:
    for field, said in config.required_values.items():
        value = job.get(field, Job.model_fields[field].default)
        if said.value != value:
            raise ConfigError(
                f"{said.place} is {said.value}, and {value} elsewhere: training stops at that; write auto"
            )


def _model(name: str | ModelSpec, reading: ParsedConfig, found: DetectedConfig) -> ModelSpec:
    """The model by the configuration's name; by its last part where a folder is not here, or the Hub does not answer.

    Raises:
        ConfigError: where none is named.
    """
    if isinstance(name, ModelSpec):
        return name
    if not name:
        raise ConfigError(f"{found.source.where}: names no model; give --model")
    try:
        return api.load_model(name)
    except VramplanError as error:
        last = name.rstrip("/").rpartition("/")[2]
        elsewhere = isinstance(error, HubError) or name.startswith((".", "/", "~", "$")) or name.count("/") > 1
        try:
            spec = find_model(last) if elsewhere else None
        except UnknownNameError:
            spec = None
        if spec is None:
            raise
        why = re.split(r" \(|;", str(error).partition(": ")[2])[0] if isinstance(error, HubError) else "is not here"
        reading.notes.append(Note("warning", "model", f"{name} {why}: taken as {spec.name} by its name"))
        return spec


def settled(spec: ModelSpec, reading: ParsedConfig, job: dict[str, Any]) -> dict[str, Any]:
    """What only the model decides: its longest sample, its images."""
    sees = spec.model_type in IMAGE_PROCESSORS
    dropped = set() if sees else {"vision", "projector", "max_pixels", "min_pixels", "max_tiles"}
    if spec.model_type not in LINEAR_EXPERTS:
        dropped.add("experts")
    if job["method"] == "full":
        dropped |= {name for name in job if name.startswith("lora_")}
    job = {name: value for name, value in job.items() if name not in dropped}
    if "sequence_length" not in job:
        job["sequence_length"] = most = _most_positions(spec)
        name = str(reading.names.get("sequence_length", ""))
        reading.notes.insert(0, Note("warning", name, f"is not set: a sample may have {most:,} tokens, which decides"))
    if job.get("videos"):
        job |= video_sampling.settled(spec, reading.video_sampling, job, reading.notes)
    elif sees:
        job |= image_limits.settled(spec, reading, job)
    lists = FRAMEWORKS[reading.framework].expands_all_linear and job.get("experts", "stacked") == "stacked"
    if job["method"] != "full" and lists and job.get("lora_targets") is None:
        job["lora_targets"] = listed_layers(spec)
    return {name: value for name, value in job.items() if value is not None}


def _most_positions(spec: ModelSpec) -> int:
    text = spec.config.get("text_config") or spec.config
    return int(next((text[key] for key in POSITIONS if isinstance(text.get(key), int)), 2048))


__all__ = ["Verdict", "check", "read"]
