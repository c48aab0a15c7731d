"""How the lengths in a data set limit a job: its longest batch, and how often a batch comes near that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, setting
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.settings import Note
from vramplan.inputs.dataset import LengthDistribution, Lengths, counter_for, measure
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import IMAGE_PROCESSORS, processed_image
from vramplan.inputs.job_values import MAX_COUNT, ROLLOUTS
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.task_rules import TRL_TASKS
from vramplan.inputs.tasks import RERANKERS
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.monotone_search import bisect_largest
from vramplan.progress import Progress
from vramplan.units import ceil_div

NEAR_SHARE = 0.95
"""A batch is near the limit if it needs this share of the bytes that the longest batch needs."""
NUM_SAMPLED = 256
"""Samples whose batches are simulated before the longest."""
ONE_LENGTH = (
    "differ in the data: every batch is taken as one of the longest, and what shorter ones leave cached is not counted"
)
STEPS = 64
"""Lengths are searched in steps of this part of the longest."""


@dataclass(frozen=True, slots=True)
class DatasetLimits:
    """The lengths of a data set under the settings of a job."""

    lengths: Lengths
    distribution: LengthDistribution
    """All samples, their images counted as tokens."""
    trained: LengthDistribution
    """The samples that train: cut to the limit, or without the longer ones."""
    limit: int
    """Most tokens of a sample that the configuration allows."""
    drops_longer: bool
    """Whether longer samples are dropped instead of cut."""
    rows: str
    """Rows of a batch: samples, padded or packed, as in :class:`ParsedConfig`."""
    micro_batch_size: int
    global_batch_size: int
    image_tokens: int
    trained_samples: int
    """Samples of one epoch: those that train, less those that the configuration leaves out or holds back."""
    rows_per_sample: int = 1
    """Completions that are generated for a prompt and trained on."""
    completion: int = 0
    """Most tokens that are generated for each sample, which its length contains; 0 if the data set has the answers."""
    near_length: int | None = None
    """Least tokens of the longest sample of a batch near the limit; None if all batches are equally long."""
    fitting_length: int | None = None
    """Most tokens that fit at this micro-batch if the job does not fit; 0 if no length fits."""

    @property
    def worst_length(self) -> int:
        """Tokens of the longest row of a batch."""
        return self.trained.longest if self.rows == "samples" else self.limit

    @property
    def sample_lengths(self) -> tuple[int, ...] | None:
        """Tokens of random samples to simulate before the longest; None if all micro-batches are equally long."""
        varies = self.rows == "samples" and not self.image_tokens and len(self.trained.lengths) > 1
        return self.trained.sample_lengths(NUM_SAMPLED) if varies else None

    @property
    def padded_to(self) -> float:
        """Tokens that the rows of a batch are padded to, on average over random batches."""
        return self.trained.expected_longest(self.micro_batch_size) if self.rows == "samples" else float(self.limit)

    @property
    def padding_share(self) -> float:
        """Share of padding among the tokens that are computed."""
        if self.rows == "packed" or self.completion:
            return 0.0
        return max(0.0, 1 - self.trained.tokens / self.trained.samples / self.padded_to)

    @property
    def near_share(self) -> float | None:
        """Share of micro-batches near the limit; None if all batches are equally long."""
        if self.near_length is None:
            return None
        return self.trained.share_reaching(self.near_length, self.micro_batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        rows = self.trained_samples * self.rows_per_sample
        if self.rows == "packed":
            rows = ceil_div(self.trained.tokens * rows, self.trained.samples * self.limit)
        return ceil_div(rows, self.global_batch_size)


def lengths_of(
    dataset: str | Path | Lengths, spec: ModelSpec, tokenizer: str | None, progress: Progress, task: str | None = None
) -> Lengths:
    """Lengths of the samples of a data set in tokens of a model: of the texts that a task has of them.

    Tokens are counted by `tokenizer` if one is named, by the model's own if it is on this machine, otherwise estimated
    from characters.

    Raises:
        VramplanError: naming the line that cannot be read.
    """
    if isinstance(dataset, Lengths):
        return dataset
    from vramplan.inputs import hub

    file = hub.tokenizer_file(tokenizer if tokenizer is not None else spec.name, needed=tokenizer is not None)
    text = spec.config.get("text_config") or spec.config
    counter = counter_for(file, text.get("vocab_size"), tokenizer is not None)
    return measure(Path(dataset), counter, progress, task)


def apply_dataset(
    lengths: Lengths, spec: ModelSpec, gpu: Gpu, config: ParsedConfig, job: dict[str, Any], given: Mapping[str, Any]
) -> tuple[DatasetLimits, dict[str, Any]]:
    """(the limits of the data set, the job with the length of its longest sample).

    Args:
        lengths: The data set.
        spec: The model.
        gpu: The GPU.
        config: The configuration; a warning is added if the data set has images that the model does not take.
        job: Settings of the job; its sequence length is the limit.
        given: Settings that the user gave beside the configuration.

    Raises:
        ConfigError: if no sample is left.
    """
    takes_images, limit = spec.model_type in IMAGE_PROCESSORS, job["sequence_length"]
    image_tokens = 0
    completion = limit - job.get("prompt_length", 0) if lengths.are_prompts else 0
    if takes_images:
        image = processed_image(spec, complete_job(spec, gpu, {**job, "sequence_length": MAX_COUNT, "images": 1}))
        image_tokens = image.all_tokens if image is not None else 0
    elif any(images for _, images in lengths.counts):
        config.notes.insert(0, Note("warning", "images", f"are in {lengths.path}, but {spec.name} takes text alone"))
    if job.get("generated_by", "none") != "none":
        raise ConfigError(
            f"{lengths.path}: with {setting('task', job['task'])} completions are generated beside those of a data set;"
            f" give {setting('sequence_length')} of the longest"
        )
    if config.rows == "packed" and job.get("task") in (*RERANKERS, "embedding"):
        raise ConfigError(
            f"{lengths.path}: with packing all texts of a sample are in one pack, which is not counted from a data set;"
            " leave it out: a full pack is planned"
        )
    distribution = lengths.distribution(image_tokens, completion)
    trained = distribution.limit_to(limit, config.drops_longer)
    full_job = complete_job(spec, gpu, job)
    limits = DatasetLimits(
        lengths=lengths,
        distribution=distribution,
        trained=trained,
        limit=limit,
        drops_longer=config.drops_longer,
        rows=config.rows,
        micro_batch_size=full_job.micro_batch_size,
        global_batch_size=full_job.global_batch_size,
        image_tokens=image_tokens,
        trained_samples=config.num_train_samples(trained.samples),
        rows_per_sample=full_job.num_generations if full_job.task in ROLLOUTS else 1,
        completion=completion,
    )
    update: dict[str, Any] = {"sequence_length": limits.worst_length}
    if lengths.are_prompts:
        update["prompt_length"] = limits.worst_length - completion
    elif (job.get("prompt_length") or 0) >= limits.worst_length:
        update["prompt_length"] = None
    if full_job.task in TRL_TASKS and len(trained.lengths) > 1:
        config.notes.insert(0, Note("warning", "lengths", ONE_LENGTH))
    if takes_images and given.get("images") is None:
        update["images"] = trained.max_images
    return limits, job | update | _negatives(lengths, config, job)


def _negatives(lengths: Lengths, config: ParsedConfig, job: dict[str, Any]) -> dict[str, int]:
    """Texts that do not match, as the data set has them, if nothing else says how many.

    Raises:
        ConfigError: if there are no texts to compare.
    """
    doubts = [note for note in config.notes if note.kind == "doubt" and note.key == "negatives"]
    if not doubts:
        return {}
    config.notes[:] = [note for note in config.notes if note not in doubts]
    if lengths.texts < 2:
        raise ConfigError(f"{lengths.path}: one text in each sample; {setting('task', job['task'])} compares two")
    found = lengths.texts - 2
    return {"negatives": min(found, job["negatives"]) if job["task"] in RERANKERS else found}


def add_length_limits(
    limits: DatasetLimits, job: Mapping[str, Any], need: Callable[[int], tuple[int, bool]]
) -> DatasetLimits:
    """The limits with those that need estimates at other lengths: `fitting_length` and `near_length`.

    Args:
        limits: The limits so far.
        job: Settings of the job.
        need: (bytes, whether they fit) of the job at a sequence length.
    """
    if limits.completion:  # what is generated decides, and is not the data's
        return limits
    shortest = max((job.get("images") or 0) * limits.image_tokens, job.get("prompt_length") or 0) + 1
    worst_bytes, fits = need(limits.worst_length)
    if not fits:
        fitting_length = _longest(shortest, limits.worst_length, lambda length: need(length)[1])
        limits = replace(limits, fitting_length=fitting_length)
    if limits.rows == "samples" and limits.worst_length > shortest:
        below = _longest(shortest, limits.worst_length, lambda length: need(length)[0] < NEAR_SHARE * worst_bytes)
        limits = replace(limits, near_length=below + 1)
    return limits


def _longest(shortest: int, longest: int, holds: Callable[[int], bool]) -> int:
    """The longest length below `longest` for which `holds`, in steps of one part in STEPS of it; 0 if there is none."""
    if not holds(shortest):
        return 0
    return bisect_largest(shortest, longest, holds, step=max(1, longest // STEPS))
