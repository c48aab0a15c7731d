"""A loop over equal chunks, of which a few are simulated, is the loop of all: to each event, byte and kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tests import minicpm_cases, mixer_cases
from tests.helpers import card_of, spec_of
from tests.matrix_cases import SETTINGS
from vramplan.analytic.autograd import chunks, recording
from vramplan.analytic.autograd.chunks import FIRST, LAST, Chunk, simulated_chunks
from vramplan.analytic.autograd.graph import LayerSection, StorageInfo
from vramplan.analytic.chunk_folding import with_all_chunks
from vramplan.analytic.estimator import estimate
from vramplan.analytic.prepare import prepare
from vramplan.analytic.step_record import StepRecord
from vramplan.analytic.train_step import simulate_evaluation, simulate_step
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.step_time.kernels import Kernel

LENGTHS = (449, 512, 1000, 2048)
"""Eight chunks, the fewest that are folded; the same; an incomplete last one; 32."""
JOBS: dict[str, dict[str, Any]] = {
    "full": {**SETTINGS["full-bf16"], "checkpointing": "none", "micro_batch_size": 2},
    "full, checkpointed": {**SETTINGS["full-bf16"], "checkpointing": "full"},
    "reentrant": {**SETTINGS["full-bf16"], "checkpointing": "full", "reentrant": True},
    "fp32": {**SETTINGS["full-fp32"], "checkpointing": "none"},
    "autocast": {**SETTINGS["full-autocast"], "checkpointing": "none", "gradient_accumulation_steps": 2},
    "lora": {**SETTINGS["lora-bf16"], "checkpointing": "none", "micro_batch_size": 3},
    "lora, checkpointed": {**SETTINGS["lora-autocast"], "checkpointing": "full", "micro_batch_size": 2},
    "plain loop": {**SETTINGS["full-bf16"], "checkpointing": "none", "loop": "plain", "gradient_accumulation_steps": 2},
    "dpo": {**SETTINGS["lora-bf16"], "task": "dpo", "checkpointing": "none", "gradient_accumulation_steps": 2},
    "dpo, full": {**SETTINGS["full-bf16"], "task": "dpo", "checkpointing": "full"},
    "zero2": {**SETTINGS["full-bf16"], "strategy": "zero2", "num_gpus": 2, "checkpointing": "full"},
    "zero3": {**SETTINGS["full-bf16"], "strategy": "zero3", "num_gpus": 2, "checkpointing": "none"},
    "fsdp": {**SETTINGS["full-bf16"], "strategy": "fsdp", "num_gpus": 2, "checkpointing": "none"},
}
FAMILIES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "minicpmv4_6")
UNSUPPORTED = [("minicpmv4_6", "fsdp")]


def all_chunks(count: int) -> Iterator[Chunk | None]:
    yield from [None] * count


def full_of(
    record: StepRecord,
) -> tuple[list[int], list[LayerSection], list[StorageInfo], list[bool], Counter[tuple[str, Kernel]]]:
    """What a step does with all chunks: events, sections, storages, which are kept for backward, kernels by phase."""
    whole = with_all_chunks(record)
    kernels: Counter[tuple[str, Kernel]] = Counter()
    for number, section in enumerate(record.sections):
        copies = 1 if section.chunk is None else section.chunk.copies
        for kernel in record.kernels[section.first_kernel : record.end_of(number).first_kernel]:
            kernels[section.phase, kernel] += copies
    sections = [section._replace(first_kernel=0) for section in whole.sections]
    storages = [record.storages[number] for number in whole.source]
    return list(whole.events), sections, storages, [number in record.kept for number in whole.source], kernels


def steps_of(spec: ModelSpec, job: Job) -> tuple[StepRecord, StepRecord]:
    """The records of a training step and of an evaluation."""
    setting = prepare(spec, job, card_of())[0]
    return simulate_step(setting, min(2, job.gradient_accumulation_steps)), simulate_evaluation(setting)


def assert_equals_all_chunks(spec: ModelSpec, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    folded = steps_of(spec, job)
    with monkeypatch.context() as patch:
        patch.setattr(recording, "simulated_chunks", all_chunks)
        full = steps_of(spec, job)
    for few, every in zip(folded, full, strict=True):
        assert len(few.storages) < len(every.storages)
        assert full_of(few) == full_of(every)


@pytest.mark.one_of(3)
@pytest.mark.parametrize("settings", JOBS.values(), ids=JOBS)
def test_folded_equals_all_chunks(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert_equals_all_chunks(mixer_cases.spec_for("qwen3_5_text"), Job(**settings, sequence_length=512), monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("family", "name"), [pair for pair in product(FAMILIES, JOBS) if pair not in UNSUPPORTED])
def test_all_families_at_all_lengths(family: str, name: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = minicpm_cases if family.startswith("minicpm") else mixer_cases
    job = Job(**JOBS[name], sequence_length=length)
    assert_equals_all_chunks(cases.spec_for(family), job, monkeypatch)


@pytest.mark.parametrize("length", [449, 2048])
@pytest.mark.parametrize("settings", [JOBS["lora"], JOBS["zero3"]], ids=["lora", "zero3"])
def test_estimates_are_those_of_all_chunks(
    settings: dict[str, Any], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, job = spec_of("Qwen/Qwen3.5-0.8B"), Job(**settings, sequence_length=length)
    folded = estimate(spec, job, card_of())
    monkeypatch.setattr(recording, "simulated_chunks", all_chunks)
    full = estimate(spec, job, card_of())
    assert folded.step_time is not None
    assert full.step_time is not None
    assert folded.step_time.seconds == pytest.approx(full.step_time.seconds, rel=1e-12)
    assert replace(folded, step_time=None) == replace(full, step_time=None)


@pytest.mark.parametrize("count", range(1, 20))
def test_each_chunk_is_simulated_or_stood_for(count: int) -> None:
    chunks = [*simulated_chunks(count)]
    if count < FIRST + LAST + 2:
        assert chunks == [None] * count
        return
    of = [one for one in chunks if one is not None]
    assert [number for one in of for number in range(one.first, one.last + 1)] == [*range(count)]
    assert len(of) == len(chunks) == FIRST + 1 + LAST
    assert [one.distance_from(of[FIRST]) for one in of] == [-2, -1, 0, 1, 2, 3]


def test_chunks_that_are_not_equal_are_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the last chunk but two were the first that gives gradients."""
    monkeypatch.setattr(chunks, "LAST", 1)
    setting = prepare(mixer_cases.spec_for("qwen3_5_text"), Job(**JOBS["full"], sequence_length=512), card_of())[0]
    record = simulate_step(setting, 1)
    with pytest.raises(AssertionError, match="not equal"):
        with_all_chunks(record)
