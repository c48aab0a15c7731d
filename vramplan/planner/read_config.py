"""A detected configuration as a job: its framework's reader, notes on what matters, the model that it names."""

from __future__ import annotations

import re
from typing import Any, get_args

from vramplan.analytic.estimator import listed_layers
from vramplan.analytic.supported import liger_model_of
from vramplan.errors import ConfigError, UnknownNameError, VramplanError, setting
from vramplan.frameworks.detected_config import DetectedConfig
from vramplan.frameworks.environment import note_unread_variables
from vramplan.frameworks.known_keys import known_keys
from vramplan.frameworks.parsed_config import (
    ParsedConfig,
    allocator_settings,
    note_fp16_scaler,
    note_replicated_weights,
    num_nodes,
)
from vramplan.frameworks.readers import image_limits, video_sampling, zero_config
from vramplan.frameworks.registry import FRAMEWORKS
from vramplan.frameworks.settings import ConfigReader, Kind, Note
from vramplan.frameworks.syntax.argv import in_sections
from vramplan.inputs.images import IMAGE_PROCESSORS, TOWER_MODULES
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import DEFAULT_SEQUENCE_LENGTH
from vramplan.inputs.load import OTHER_MODELS, load_model, names_setting
from vramplan.inputs.model_inputs import MODEL_INPUTS, complete
from vramplan.inputs.model_names import named_model
from vramplan.inputs.model_spec import Config, ModelSpec
from vramplan.inputs.peft_targets import default_targets
from vramplan.inputs.sequence_length import max_positions
from vramplan.inputs.validation import LINEAR_EXPERTS, OLDER_UNKNOWN


def read(found: DetectedConfig, num_gpus: int, version: str | None = None) -> ParsedConfig:
    """The job of a configuration on a machine with so many GPUs, with notes on what a reader should know.

    Raises:
        VramplanError: for an invalid value, or a setting that is not modelled.
    """
    if version is not None and not re.match(r"\d+(\.\d+)*", version):
        raise ConfigError(f"{setting('framework_version', version)}: expected a version such as 4.57.6")
    try:
        config = _read(found, num_gpus, version)
        config.job_with = lambda settings: _read(found.with_settings(settings), num_gpus, version).job
        return config
    except VramplanError as error:
        where = found.source.where
        if where != "the command" and where not in error.text:
            error.args = (f"{where}: {error.text}",)
        raise


def _read(found: DetectedConfig, num_gpus: int, version: str | None) -> ParsedConfig:
    framework = found.framework
    source = in_sections(found.source) if framework.in_sections else found.source
    reader = ConfigReader(source, framework.name, framework.inherits)
    for key, value in source.settings.items():
        if value.note and framework.stops_at_duplicates:
            raise ConfigError(f"{value.place}: {key}: {value.note}; {framework.name} stops at that")
    config = framework.read(reader, num_gpus, version)
    config.synonyms = reader.synonyms
    config.names = {name: key for name, key in config.names.items() if name not in reader.decided_elsewhere}
    _agree(reader, config.job)
    config.job |= allocator_settings(reader, config.expandable) | num_nodes(reader, config.job.get("num_gpus", 1))
    note_replicated_weights(reader, config.job)
    note_fp16_scaler(reader, config.job)
    zero_config.cast(config.job)
    config.spelling, config.settings = found.source.spelling, found.source.settings
    config.where, config.constructor = found.source.where, found.source.constructor
    for name in config.video_sampling.keys:
        reader.note("ignored", name, "is about videos; --videos says that there are any")
    stops = framework.stops_at_unknown is not None and framework.stops_at_unknown(source)
    reader.note_unread_keys(known_keys(framework.name, framework.inherits), framework.unknown_key, stops)
    note_unread_variables(reader)
    config.notes = sorted(reader.notes, key=lambda note: get_args(Kind).index(note.kind))
    return config


def _agree(reader: ConfigReader, job: dict[str, Any]) -> None:
    for field, pinned in reader.required_values.items():
        value = job.get(field, Job.model_fields[field].default)
        if pinned.value != value:
            raise ConfigError(
                f"{pinned.place} is {pinned.value}, and {value} elsewhere: training stops at that; write auto"
            )


def model_of(own_name: str | None, config: ParsedConfig, found: DetectedConfig) -> ModelSpec:
    """The model by the user's own name for it, else by the configuration's.

    Raises:
        ConfigError: if none is named, or by a name that says nothing certain.
    """
    name = own_name if own_name is not None else config.model
    if not name:
        raise ConfigError(f"{found.source.where}: names no model; give {setting('model')}")
    try:
        if own_name is not None and ":" in own_name:  # code of the user's own
            return load_model(own_name)
        spec, note = named_model(name)
    except VramplanError as error:
        place = next(
            (f"{value.place}: {key}" for key, value in found.source.settings.items() if value.value == name), ""
        )
        error.args = (f"{place or found.source.where}: {error.text}",)
        raise
    if note:
        config.notes.append(Note("warning", "model", note))
    return spec


def with_own_config(spec: ModelSpec, config: ParsedConfig) -> ModelSpec:
    """The model with what the script writes into its configuration."""
    inputs = MODEL_INPUTS.get(spec.model_type)
    hears = inputs is not None and inputs.hears
    if not config.model_config or not (hears or config.job.get("layers_of") == "torchtune"):
        return spec
    return spec.model_copy(update={"config": {**spec.config, **config.model_config}})


DECIDES_LENGTH = ("task", "image_size", "audio_seconds", "sequence_length")
"""Settings that decide the length of a sample which is no text."""


def complete_with_model(spec: ModelSpec, config: ParsedConfig, job: dict[str, Any]) -> dict[str, Any]:
    """The job with what only the model decides: its longest sample, its images."""
    takes_images = spec.model_type in IMAGE_PROCESSORS
    dropped = set() if takes_images else {"max_pixels", "min_pixels", "max_tiles"}
    if not takes_images and job.get("loss") == "log_probs":  # verl's reader may not know the model
        dropped.add("images")
        config.notes[:] = [note for note in config.notes if note.key != "images"]
    if spec.model_type not in TOWER_MODULES:
        dropped |= {"vision", "projector"}
    if spec.model_type not in LINEAR_EXPERTS | OLDER_UNKNOWN:
        dropped.add("experts")
    if job["method"] == "full":
        dropped |= {name for name in job if name.startswith("lora_")}
    job = {name: value for name, value in job.items() if name not in dropped}
    if config.uses_peft_targets and job["method"] != "full":
        job["lora_targets"] = default_targets(spec)
    if not takes_text(spec):
        job |= complete(spec, {name: job[name] for name in DECIDES_LENGTH if job.get(name) is not None})
    elif "sequence_length" not in job:
        job["sequence_length"] = length = longest_sample(spec)
        name = str(config.names.get("sequence_length", ""))
        taken = f"is not set: {length:,} tokens, the most that the model takes, are taken; the data set decides"
        config.notes.insert(0, Note("warning", name, taken))
    if job.get("videos"):
        job |= video_sampling.settled(spec, config.video_sampling, job, config.notes)
    elif takes_images:
        job |= image_limits.settled(spec, config, job)
    for field, dtype_field in OTHER_MODELS.items():
        if job.get(field) is not None:
            job |= _named_by(field, dtype_field, config, job)
    if job.get("fused_kernels"):
        job |= _liger_of(spec, config, job)
    lists = FRAMEWORKS[config.framework].expands_all_linear and job.get("experts", "stacked") == "stacked"
    if job["method"] != "full" and lists and job.get("lora_targets") is None:
        job["lora_targets"] = listed_layers(spec)
    return {name: value for name, value in job.items() if value is not None}


def _named_by(field: str, dtype_field: str, config: ParsedConfig, job: dict[str, Any]) -> dict[str, Any]:
    """Another model by the name that means it, and the dtype of its checkpoint if that is what loads it."""
    name = job[field]
    with names_setting(field, name):
        try:
            spec, note = named_model(name)
        except (ConfigError, UnknownNameError) as error:  # --model is the one that trains
            key = config.names.get(field, field)
            raise ConfigError(error.text.replace(setting("model"), setting("set", f"{key}=MODEL"))) from error
    if note:
        config.notes.append(Note("warning", field, note))
    dtype = job.get(dtype_field)
    if dtype == "auto":
        dtype = spec.published_dtype
        assumption = "taken as bf16; fp32 would take twice as much" if dtype is None else f"{dtype} here"
        config.notes.append(Note("warning", field, f"is loaded in its checkpoint's own dtype, {assumption}"))
        dtype = dtype or "bf16"
    return {field: spec.name, dtype_field: dtype}


def with_prompt(config: ParsedConfig, job: dict[str, Any]) -> dict[str, Any]:
    """The job with the prompt that its length leaves beside a completion, if the configuration limits that alone."""
    if config.completion_length is None:
        return job
    return job | {"prompt_length": max(0, job["sequence_length"] - config.completion_length)}


def _liger_of(spec: ModelSpec, config: ParsedConfig, job: dict[str, Any]) -> dict[str, Any]:
    """What a switch for Liger changes, which knows some types of models alone."""
    replaced = liger_model_of(spec)
    if replaced is None or (config.liger_types is not None and spec.model_type not in config.liger_types):
        config.notes.append(Note("warning", "", f"Liger is not used for {spec.model_type}: the model stays as it is"))
        loss = "standard" if job.get("loss") in ("liger", "liger_cross_entropy") else job.get("loss")
        return {"loss": loss, "fused_kernels": ()}
    return {} if replaced.fuses_head or job.get("loss") != "liger" else {"loss": "liger_cross_entropy"}


def takes_text(spec: ModelSpec) -> bool:
    """Whether samples have text, whose length a configuration may leave open."""
    inputs = MODEL_INPUTS.get(spec.model_type)
    return inputs is None or (inputs.has_text and not inputs.hears)


def longest_sample(spec: ModelSpec) -> int:
    """Tokens of the longest sample that the model takes; the usual length if it does not say."""
    inputs = MODEL_INPUTS.get(spec.model_type)
    table = None if inputs is None else inputs.most_tokens(Config(spec.config, spec.name))
    return table or max_positions(spec) or DEFAULT_SEQUENCE_LENGTH
