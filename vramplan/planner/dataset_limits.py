"""What the lengths in a data set mean for a job: its longest batch, and how often one comes near it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.settings import Note
from vramplan.inputs import hub
from vramplan.inputs.dataset import LengthDistribution, Lengths, counter_for, measure
from vramplan.inputs.images import IMAGE_PROCESSORS, processed_image
from vramplan.inputs.job import MAX_COUNT
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.job_defaults import complete_job
from vramplan.progress import Progress
from vramplan.units import ceil_div

NEAR = 0.95
"""A batch is near the limit where it needs this share of what the longest one needs."""
DRAWN = 256
"""Samples whose batches a run is tried with."""
STEPS = 64
"""Lengths are looked for in so many parts of the longest."""


@dataclass(frozen=True, slots=True)
class Data:
    """A data set under a job."""

    lengths: Lengths
    spread: LengthDistribution
    """All samples, their images as tokens."""
    kept: LengthDistribution
    """Those that train, no longer than the limit."""
    limit: int
    """Tokens that the configuration lets through."""
    drops: bool
    """Whether longer samples are left out, not cut."""
    rows: str
    """As :class:`Reading` has it."""
    micro_batch_size: int
    global_batch_size: int
    image_tokens: int
    trained_samples: int
    """Samples of an epoch: those kept, less what the configuration leaves out or holds back."""
    near_length: int | None = None
    """Shortest longest sample of a batch near the limit; None where all batches are equally long."""
    fitting_length: int | None = None
    """Most tokens that fit at this micro-batch, where the job does not; 0 where none do."""

    @property
    def worst_length(self) -> int:
        """Tokens of the longest row of a batch."""
        return self.kept.longest if self.rows == "samples" else self.limit

    @property
    def drawn(self) -> tuple[int, ...] | None:
        """Samples that come before the longest, where lengths differ and a micro-batch is as long as its longest."""
        apart = self.rows == "samples" and not self.image_tokens and len(self.kept.lengths) > 1
        return self.kept.drawn(DRAWN) if apart else None

    @property
    def padded_to(self) -> float:
        """Tokens that a batch's rows are padded to, on average over random batches."""
        return self.kept.expected_longest(self.micro_batch_size) if self.rows == "samples" else float(self.limit)

    @property
    def padding_share(self) -> float:
        """Of the tokens that are computed."""
        return 0.0 if self.rows == "packed" else max(0.0, 1 - self.kept.tokens / self.kept.samples / self.padded_to)

    @property
    def near_share(self) -> float | None:
        """Share of micro-batches near the limit."""
        return None if self.near_length is None else self.kept.share_reaching(self.near_length, self.micro_batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps."""
        rows, kept = self.trained_samples, self.kept
        if self.rows == "packed":
            rows = ceil_div(kept.tokens * self.trained_samples, kept.samples * self.limit)
        return ceil_div(rows, self.global_batch_size)


def lengths_of(dataset: str | Path | Lengths, spec: ModelSpec, tokenizer: str | None, progress: Progress) -> Lengths:
    """A data set, measured for a model: by the tokenizer that was named, the model's if it is here, or its characters.

    Raises:
        VramplanError: naming the line of what cannot be read.
    """
    if isinstance(dataset, Lengths):
        return dataset
    file = hub.tokenizer_file(tokenizer if tokenizer is not None else spec.name, needed=tokenizer is not None)
    text = spec.config.get("text_config") or spec.config
    return measure(Path(dataset), counter_for(file, text.get("vocab_size"), tokenizer is not None), progress)


def applied(
    lengths: Lengths, spec: ModelSpec, card: Any, reading: ParsedConfig, job: dict[str, Any], given: Mapping[str, Any]
) -> tuple[Data, dict[str, Any]]:
    """(the data under a job whose sequence length is the limit, the job at its longest sample).

    Raises:
        ConfigError: where no sample is left.
    """
    sees, limit = spec.model_type in IMAGE_PROCESSORS, job["sequence_length"]
    per_image = 0
    if sees:
        picture = processed_image(spec, complete_job(spec, card, {**job, "sequence_length": MAX_COUNT, "images": 1}))
        per_image = picture.all_tokens if picture is not None else 0
    elif any(images for _, images in lengths.counts):
        reading.notes.insert(0, Note("warning", "images", f"are in {lengths.path}, but {spec.name} takes text alone"))
    whole = lengths.spread(per_image)
    kept = whole.limited(limit, reading.drops_longer)
    full = complete_job(spec, card, job)
    found = Data(
        lengths,
        whole,
        kept,
        limit,
        reading.drops_longer,
        reading.rows,
        full.micro_batch_size,
        full.global_batch_size,
        per_image,
        reading.num_train_samples(kept.samples),
    )
    update: dict[str, Any] = {"sequence_length": found.worst_length}
    if sees and given.get("images") is None:
        update["images"] = kept.images
    return found, job | update


def compared(data: Data, job: Mapping[str, Any], need: Callable[[int], tuple[int, bool]]) -> Data:
    """With what takes estimates at other lengths: `need` says (bytes, whether they fit)."""
    least = (job.get("images") or 0) * data.image_tokens + 1
    most, fits = need(data.worst_length)
    if not fits:
        data = replace(data, fitting_length=_largest(least, data.worst_length, lambda one: need(one)[1]))
    if data.rows == "samples" and data.worst_length > least:
        below = _largest(least, data.worst_length, lambda one: need(one)[0] < NEAR * most)
        data = replace(data, near_length=below + 1)
    return data


def _largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The longest below `high`, to a part of it, for which this holds; 0 where it does for none."""
    step = max(1, high // STEPS)
    if not holds(low):
        return 0
    while high - low > step:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
