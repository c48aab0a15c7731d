"""Measuring many jobs within a given time, the most informative first, into a ledger."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from vramplan.errors import ConfigError, UnknownNameError, VramplanError
from vramplan.inputs.catalog import find_model
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.measurements import ledger, probe
from vramplan.measurements.probe import ProbeDevice
from vramplan.measurements.verify import ProbeRun
from vramplan.memory.measurement import Measured, identity
from vramplan.planner.job_defaults import complete_job
from vramplan.units import GiB, counted

LEAST_SECONDS = 25.0
"""With less time left no run is started: torch alone takes ten."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the matrix."""

    model: str
    job: dict[str, Any] = field(default_factory=dict)
    history: bool = False
    """Every allocation and free is recorded, to be replayed."""
    as_card: str | None = None
    """The card to stand in for."""
    find_max: bool = False
    """Look for the largest micro-batch that runs."""

    @property
    def name(self) -> str:
        """How it is called in lists."""
        said = [
            f"{key.removesuffix('_size')}={'+'.join(map(str, v)) if isinstance(v, tuple) else v}"
            for key, v in self.job.items()
        ]
        more = [f"as {self.as_card}"] * bool(self.as_card) + ["largest"] * self.find_max + ["history"] * self.history
        return " ".join([self.model, *said, *more])

    def full_job(self, on: ProbeDevice) -> tuple[ModelSpec, Job]:
        """The model, and the job with everything filled in."""
        spec = find_model(self.model)
        if spec is None:
            raise UnknownNameError("model", self.model, ())
        return spec, complete_job(spec, on.card, self.job)


def case(model: str, batch: int, length: int, **more: Any) -> Case:
    """A line: `history`, `as_card` and `find_max` are the case's own, all else is of the job."""
    own = {name: more.pop(name) for name in ("history", "as_card", "find_max") if name in more}
    return Case(model, {"micro_batch_size": batch, "sequence_length": length, **more}, **own)


FULL: dict[str, Any] = {"method": "full", "autocast": "none"}
AMP: dict[str, Any] = {"method": "full", "dtype": "fp32", "autocast": "bf16"}
NONE: dict[str, Any] = {"checkpointing": "none"}
QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")

CASES = (
    # the common job, and each thing that it is made of: logits, casts of adapters, saved tensors, optimizer peaks
    case("qwen2.5-7b", 1, 2048, history=True),
    case("qwen2.5-7b", 1, 2048, **NONE),
    case("llama-3.2-1b", 4, 2048, **FULL, **NONE, history=True),
    case("qwen2.5-1.5b", 8, 1024, **AMP, **NONE),
    case("qwen2.5-7b", 4, 2048, loop="plain"),
    case("qwen2.5-1.5b", 4, 2048, **FULL, optimizer="adamw_torch"),
    case("qwen2.5-7b", 2, 2048, lora_rank=16, lora_dropout=0.05, **NONE),
    case("mistralai/Mistral-7B-v0.1", 4, 4096, lora_rank=16, lora_targets=QKVO, lora_dropout=0.1, autocast="none"),
    # the question that people ask
    case("qwen2.5-7b", 1, 2048, as_card="rtx4090", find_max=True),
    case("llama-3.1-8b", 1, 8192, **FULL, history=True),
    # images: a tower that is frozen and still differentiated, windows, DeepStack
    case("Qwen/Qwen2.5-VL-3B-Instruct", 1, 2048, images=1, image_size=(1344, 896), history=True),
    case("OpenGVLab/InternVL2_5-2B", 2, 2048, images=1, image_size=(1344, 896), **NONE),
    case("Qwen/Qwen3-VL-2B-Instruct", 2, 2048, **FULL, images=1, image_size=(1024, 1024), vision="train"),
    case("google/gemma-3-4b-it", 1, 1024, images=2, image_size=(896, 896), vision="lora", projector="lora"),
    # masks, scores, accumulation
    case("llama-3.2-1b", 4, 2048, **FULL, **NONE, batches="padded"),
    case("llama-3.2-1b", 4, 2048, **FULL, **NONE, attention="eager"),
    case("qwen2.5-0.5b", 8, 2048, **FULL, **NONE, gradient_accumulation_steps=4, history=True),
    # other families
    case("google/gemma-2-2b", 2, 2048, lora_rank=16, attention="eager", **NONE),
    case("Qwen/Qwen3-8B", 2, 2048, **NONE),
    case("microsoft/Phi-3-mini-4k-instruct", 2, 2048, **FULL, **NONE),
    case("EleutherAI/pythia-1.4b", 4, 2048, **FULL, **NONE),
    case("openai-community/gpt2-large", 8, 1024, **AMP, **NONE),
    case("llama-3.1-8b", 2, 2048, lora_rank=32, lora_targets=("q_proj", "v_proj"), **NONE),
    case("llama-3.1-8b", 1, 16384),
    # the largest batch, from far away
    case("llama-3.2-1b", 2, 1024, **FULL, as_card="rtx4090", find_max=True),
    case("mistralai/Mistral-7B-v0.1", 2, 4096, **FULL),
    case("qwen2.5-1.5b", 2, 4096, method="full", dtype="fp32", autocast="none"),
    case("qwen2.5-7b", 4, 1024, lora_rank=16, autocast="none", **NONE),
    case("llama-3.2-1b", 16, 512, **AMP, **NONE),
    case("qwen2.5-0.5b", 32, 512, **FULL, **NONE, optimizer="sgd"),
    case("llama-3.1-8b", 4, 2048, as_card="a100-40gb", find_max=True),
    case("google/gemma-2-2b", 2, 2048, **FULL, attention="eager"),
    case("Qwen/Qwen3-8B", 1, 4096, **FULL),
    case("microsoft/Phi-3-mini-4k-instruct", 4, 2048, batches="padded"),
    case("llama-3.2-1b", 4, 2048, **FULL, **NONE, expandable_segments=True, history=True),
    case("qwen2.5-7b", 2, 2048, method="dora"),
    case("qwen2.5-1.5b", 4, 2048, **FULL, optimizer="adafactor"),
)
"""The matrix, the most informative runs first."""


def left(on: ProbeDevice, folder: Path, only: str = "", cases: Sequence[Case] = CASES) -> list[Case]:
    """The cases that the ledger does not hold yet.

    Raises:
        ConfigError: for a pattern that is none, or that no case matches.
    """
    try:
        wanted = [one for one in cases if re.search(only, one.name)]
    except re.error as error:
        raise ConfigError(f"--only {only!r}: no regular expression ({error})") from error
    if not wanted:
        raise ConfigError(f"--only {only!r}: no run has that in its name; --list shows all")
    known = ledger.load_all(folder) if folder.is_dir() else []
    return [one for one in wanted if not _is_done(one, on, known)]


def _is_done(one: Case, on: ProbeDevice, known: Sequence[Measured]) -> bool:
    on = _bench_for(one, on)
    spec, job = one.full_job(on)
    cap = probe.limit(on.card, job) if on.capped else None
    if not one.find_max:
        return identity(spec.name, spec.config, job, on.card.name, cap, on.device == "cpu") in {
            run.identity for run in known
        }
    return any(
        largest is not None
        for key, largest in frontiers(known).items()
        if key == frontier_key(spec.name, job, on.card.name, cap)
    )


def frontier_key(model: str, job: Job, card: str, cap_bytes: int | None) -> str:
    """What runs have in common that differ in their micro-batch alone."""
    settings = job.model_dump(mode="json", exclude_defaults=True, exclude={"micro_batch_size"})
    return f"{model} {sorted(settings.items())} {card} {cap_bytes}"


def frontiers(known: Sequence[Measured]) -> dict[str, int | None]:
    """The largest micro-batch that ran, by :func:`frontier_key`; None where the next larger one was not tried."""
    ran: dict[str, set[int]] = {}
    failed: dict[str, set[int]] = {}
    for run in known:
        key = frontier_key(run.model, run.job, run.card, run.environment.cap_bytes)
        (ran if run.outcome == "ok" else failed).setdefault(key, set()).add(run.job.micro_batch_size)
    return {key: max(sizes) if max(sizes) + 1 in failed.get(key, ()) else None for key, sizes in ran.items()}


def _bench_for(one: Case, on: ProbeDevice) -> ProbeDevice:
    if one.as_card is None or one.as_card == on.card.name:
        return replace(on, history=one.history)
    other = probe.bench(one.as_card, device=on.device)
    return replace(on, card=other.card, capped=other.capped, history=one.history)


def run(on: ProbeDevice, folder: Path, cases: Sequence[Case], seconds: float) -> Iterator[tuple[str, bool]]:
    """Measure case by case; each run is in the ledger before the next one starts.

    Yields a line for each, and whether it was measured.

    Raises:
        ConfigError: for a folder that cannot be written.
    """
    ledger.make(folder)
    deadline = monotonic() + seconds
    for index, one in enumerate(cases):
        rest = deadline - monotonic()
        if rest < LEAST_SECONDS:
            yield f"out of time, {counted(len(cases) - index, 'run')} left: run it again", index > 0
            return
        here = replace(
            _bench_for(one, on),
            timeout_seconds=rest,
            keep=lambda measured, history: ledger.save(folder, measured, history) and None,
        )
        try:
            yield f"{one.name}: {_measure(one, here)}", True
        except VramplanError as error:
            yield f"{one.name}: {str(error).removeprefix(f'{one.model}: ')}", False


def _measure(one: Case, on: ProbeDevice) -> str:
    spec, job = one.full_job(on)
    if one.find_max:
        settings = {k: v for k, v in job.settings.items() if k != "micro_batch_size"}
        found = probe.find_max(spec, on=on, **settings)
        return f"largest micro-batch {found.micro_batch_size}" + ("" if found.exact else ", perhaps more")
    return line(ProbeRun(job, on.measure(spec, job), on.predict(spec, job)))


def line(one: ProbeRun) -> str:
    """A run in one line."""
    if not one.fits:
        return f"out of memory in {one.measured.failed_phase}"
    parts = []
    for name in ("peak_allocated_bytes", "peak_reserved_bytes"):
        size = getattr(one.measured, name)
        said = f"{name.split('_')[1]} {size / GiB:.3f} GiB"
        if one.predicted is not None and size:
            said += f" (estimate {getattr(one.predicted, name) / size - 1:+.2%})"
        parts.append(said)
    if one.measured.context_bytes is not None:
        parts.append(f"context {one.measured.context_bytes >> 20} MiB")
    if one.measured.step_time is not None:
        parts.append(f"step {one.measured.step_time:.3f} s")
    return ", ".join(parts)
