"""Whether the job of a configuration fits, and if not, what is nearest to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from vramplan.analytic.layers.losses import FUSED
from vramplan.errors import (
    ConfigError,
    setting,
)
from vramplan.frameworks.parsed_config import (
    ParsedConfig,
)
from vramplan.frameworks.settings import Note
from vramplan.inputs.dataset import Lengths
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job_values import EXPANDABLE_SEGMENTS, GENERATING
from vramplan.inputs.load import load_gpu
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.task_rules import TRL_TASKS
from vramplan.memory.calibration import CONFIDENCE, with_margin
from vramplan.planner import dataset_limits
from vramplan.planner.image_losses import check_image_loss
from vramplan.planner.read_config import (
    complete_with_model,
    longest_sample,
    with_prompt,
)
from vramplan.planner.read_job import ReadJob
from vramplan.planner.shorter_samples import is_length_a_limit, shorter_length, with_length
from vramplan.planner.verdict import Verdict
from vramplan.planner.ways_out import with_ways_out
from vramplan.progress import Progress, silent

CACHED = (
    "the longest sample alone would fit; with what samples of other lengths leave in torch's cache before it does not:"
    f" set {EXPANDABLE_SEGMENTS}"
)
"""Why a data set does not fit although its longest sample would."""
FUSED_EVALUATION = (
    "is estimated with the same fused loss, without whole logits; a framework that returns predictions, or a kernel"
    " that fuses in training alone, holds them: then it needs more"
)
"""The doubt about an evaluation with a fused loss: Liger skips logits in training, or if the Trainer asks for it."""


def _drop_answered(config: ParsedConfig, given: Mapping[str, Any]) -> None:
    """Remove the doubts about a length that the caller gives."""
    lengths = [name for name in ("sequence_length", "audio_seconds") if given.get(name) is not None]
    keys = {*lengths, *(str(config.names.get(name, name)) for name in lengths)}
    config.notes[:] = [note for note in config.notes if note.kind != "doubt" or note.key not in keys]


def _shorter_prompt(config: ParsedConfig, length: int) -> dict[str, int]:
    """The prompt of a shorter sample, beside a completion of full length, where a configuration limits both.

    Raises:
        ConfigError: if the sample has no room for a prompt.
    """
    prompt = config.job.get("prompt_length")
    if config.job.get("task") not in GENERATING or not prompt or length >= config.job.get("sequence_length", length):
        return {}
    completion = config.job["sequence_length"] - prompt
    if length <= completion:
        raise ConfigError(
            f"{setting('sequence_length', length)}: a completion alone has up to {completion:,} tokens here; give more,"
            " or limit it in the configuration"
        )
    return {"prompt_length": length - completion}


def judge(
    config: ParsedConfig,
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
    """Whether the job of a configuration fits; if not and `look_further`, plans for the same global batch.

    Raises:
        VramplanError: for what cannot run, or is not modelled.
    """
    gpu = load_gpu(gpu)
    _drop_answered(config, {"sequence_length": sequence_length, **given})
    job = {**config.job, **{name: value for name, value in given.items() if value is not None}}
    if dataset is not None:
        job.setdefault("sequence_length", longest_sample(spec))
    fills_rows = config.rows == "packed" and "sequence_length" in config.job
    if sequence_length is not None and not fills_rows:  # packed rows are full, however long a sample is
        job["sequence_length"] = min(sequence_length, job.get("sequence_length", sequence_length))
        job |= _shorter_prompt(config, job["sequence_length"])
    job, data = with_prompt(config, complete_with_model(spec, config, job)), None
    check_image_loss(spec, config, job)
    if dataset is not None:
        lengths = dataset_limits.lengths_of(dataset, spec, tokenizer, progress, job.get("task"))
        data, job = dataset_limits.apply_dataset(lengths, spec, gpu, config, job, given)

    read_job = ReadJob(config, spec, gpu, job, confidence, progress)

    @cache
    def verdict_at(length: int, other_lengths: tuple[int, ...] | None = None) -> Verdict:
        update = {**with_length(job, length), "lengths": other_lengths}
        training = read_job.estimate(update)
        evaluation = read_job.evaluation_bytes(training, update, config.eval_batch_size)
        return Verdict(config, with_margin(gpu, confidence), training, evaluation, None, min_headroom, data)

    of_one_length = job.get("batches") == "packed" or job.get("task") in TRL_TASKS
    other_lengths = data.sample_lengths if data is not None and not of_one_length else None
    verdict = verdict_at(job["sequence_length"], other_lengths)
    if verdict.evaluation_bytes is not None and verdict.estimate.job.loss in FUSED:
        config.notes.insert(0, Note("doubt", "evaluation", FUSED_EVALUATION))
    if other_lengths is not None and not verdict.fits and verdict_at(job["sequence_length"]).fits:
        config.notes.insert(0, Note("warning", "lengths", CACHED))
    if data is not None and look_further:

        def need(length: int) -> tuple[int, bool]:
            progress(f"samples of {length:,} tokens", 0.5)
            return verdict_at(length).need_bytes, verdict_at(length).fits

        verdict = replace(verdict, data=dataset_limits.add_length_limits(data, job, need))
    if verdict.fits or not look_further:
        return verdict
    if data is None and sequence_length is None and is_length_a_limit(config):
        verdict = replace(verdict, shorter_length=shorter_length(job, verdict_at))
    return with_ways_out(read_job, verdict)


__all__ = ["judge"]
