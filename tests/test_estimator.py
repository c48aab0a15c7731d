"""One estimator for many questions: its answers do not depend on what was asked before, or on the core that runs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict, fields
from functools import cache
from itertools import product
from typing import Any

import pytest

from tests.helpers import ROOT, card_of, spec_of
from vramplan.analytic import estimator as estimator_module
from vramplan.analytic.estimator import MAX_EVENTS, MAX_JOBS, Estimator, estimate
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory import passes
from vramplan.memory.estimate import Estimate
from vramplan.planner.job_defaults import complete_job

GPUS = ("t4", "rtx4090", "h100")
"""Without FlashAttention, with it, with a larger workspace of cuBLAS."""
BATCHES = ((1, 1), (3, 4), (9, 2), (9, 1), (200, 3))
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("smollm2-135m", {"dtype": "fp16", "autocast": "fp16", "sequence_length": 512}),
    "full": ("smollm2-135m", {"method": "full", "dtype": "fp32", "autocast": "none", "checkpointing": "none"}),
    "plain": ("qwen2.5-0.5b", {"loop": "plain", "dtype": "fp16", "autocast": "fp16", "attention": "eager"}),
    "sharded": ("smollm2-135m", {"strategy": "zero2", "num_gpus": 2, "dtype": "fp16", "autocast": "none"}),
    "spread": ("qwen2.5-0.5b", {"strategy": "device_map", "num_gpus": 2, "dtype": "fp16", "autocast": "fp16"}),
    "lengths": ("smollm2-135m", {"lengths": (100, 512), "sequence_length": 512, "dtype": "fp32", "autocast": "none"}),
}
Question = tuple[str, int, int, str]


shipped = cache(spec_of)
"""The same object each time, by which estimators know that a model is the same."""


@cache
def asked(name: str, gpu_name: str) -> tuple[ModelSpec, Job, Gpu]:
    model, settings = JOBS[name]
    spec, gpu = shipped(model), card_of(gpu_name)
    return spec, complete_job(spec, gpu, settings), gpu


def job_of(question: Question) -> tuple[ModelSpec, Job, Gpu]:
    name, micro, steps, gpu_name = question
    spec, job, gpu = asked(name, gpu_name)
    return spec, job.model_copy(update={"micro_batch_size": micro, "gradient_accumulation_steps": steps}), gpu


@cache
def alone(question: Question) -> Estimate:
    """The answer of an estimator that was asked nothing else."""
    return estimate(*job_of(question))


def assert_equal(found: Estimate, expected: Estimate, question: Question) -> None:
    for field in fields(Estimate):
        if field.compare:
            assert getattr(found, field.name) == getattr(expected, field.name), (question, field.name)
    assert found.timeline is not None
    assert expected.timeline is not None
    assert found.timeline.events == expected.timeline.events
    assert found.timeline.peak_bytes() == expected.timeline.peak_bytes()


QUESTIONS: list[Question] = [(name, *batch, gpu) for name, batch, gpu in product(JOBS, BATCHES, GPUS)][::4]


@pytest.mark.one_of(4)
@pytest.mark.parametrize("seed", range(8))
def test_answers_do_not_depend_on_what_was_asked_before(seed: int) -> None:
    """Lower bounds of all first, or each completed at once; some known to be one of several, some not."""
    choose = random.Random(seed)
    estimator = Estimator()
    questions = choose.sample(QUESTIONS, len(QUESTIONS))
    waiting = []
    for question in questions:
        begun = estimator(*job_of(question), several=choose.random() < 0.7)
        if choose.random() < 0.5:
            assert_equal(begun.complete(), alone(question), question)
        else:
            waiting.append((question, begun))
    choose.shuffle(waiting)
    for question, begun in waiting:
        assert begun.lower_bound_bytes <= alone(question).lower_bound_bytes
        assert_equal(begun.complete(), alone(question), question)
        assert_equal(begun.complete(), alone(question), question)


def test_as_many_jobs_stay_as_there_is_room_for() -> None:
    estimator = Estimator()
    spec, job, gpu = asked("lora", "h100")
    for rank in range(1, MAX_JOBS + 3):
        estimator(spec, job.model_copy(update={"lora_rank": rank}), gpu)
    assert [steps.job.lora_rank for steps in estimator._jobs] == [*range(MAX_JOBS + 2, 2, -1)]
    for rank in (1, 4):
        other = job.model_copy(update={"lora_rank": rank})
        assert estimator(spec, other, gpu).complete() == estimate(spec, other, gpu)
    assert len(estimator._jobs) == MAX_JOBS


@pytest.mark.parametrize("most", [0, MAX_EVENTS])
def test_jobs_are_given_up_for_the_events_of_their_timelines(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimator_module, "MAX_EVENTS", most)
    spec, gpu, estimator = shipped("smollm2-135m"), card_of(), Estimator()
    settings = {"task": "grpo", "num_generations": 2, "micro_batch_size": 2, "prompt_length": 32, "sequence_length": 64}
    first, *others = (
        complete_job(spec, gpu, {**settings, "optimizer": name}) for name in ("adamw_torch", "sgd", "adafactor")
    )
    before = estimator(spec, first, gpu)
    for job in others:
        estimator(spec, job, gpu)
    after = estimator(spec, first, gpu)
    assert (after is before) == (most > 0)
    assert after.complete() == before.complete() == estimate(spec, first, gpu)


def test_gpus_that_differ_in_size_alone_share_simulations() -> None:
    """Simulated steps depend on the GPU only in the kernels that SDPA may choose: none, flash, cuDNN's."""
    estimator = Estimator()
    for gpu_name in ("rtx4090", "h100", "t4", "a100-80gb"):
        estimator(*job_of(("lora", 9, 1, gpu_name)), several=True)
    scalings = {id(steps.scaling): steps.setting.fused for steps in estimator._jobs}
    assert sorted((fused.flash, fused.cudnn_dim) for fused in scalings.values()) == [(False, 0), (True, 0), (True, 128)]


MANY: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("qwen2.5-0.5b", "rtx4090", {"gradient_accumulation_steps": 3, "micro_batch_size": 5}),
    ("qwen2.5-0.5b", "rtx3060-12gb", {"method": "full", "expandable_segments": True, "micro_batch_size": 3}),
    ("smollm2-135m", "a100-80gb", {"method": "full", "strategy": "zero3", "num_gpus": 4, "autocast": "none"}),
    ("smollm2-135m", "h100", {"strategy": "fsdp", "num_gpus": 2, "method": "full"}),
    ("qwen2.5-1.5b", "rtx4090", {"strategy": "device_map", "num_gpus": 2}),
    ("smollm2-135m", "t4", {"lengths": (100, 300, 512), "sequence_length": 512}),
    ("smolvlm-256m-instruct", "rtx4090", {"method": "dora", "sequence_length": 1536, "micro_batch_size": 2}),
    ("t5-small", "v100", {"method": "full", "optimizer": "adafactor"}),
)


def answers() -> list[Any]:
    """Every number and text of each job's estimate, one of several for every other job."""
    found = []
    for number, (model, gpu_name, settings) in enumerate(MANY):
        spec, gpu = shipped(model), card_of(gpu_name)
        one = Estimator()(spec, complete_job(spec, gpu, settings), gpu, several=number % 2 == 0).complete()
        values = {field.name: getattr(one, field.name) for field in fields(Estimate) if field.name != "timeline"}
        values |= {"job": one.job.model_dump(mode="json"), "terms": [asdict(term) for term in one.terms]}
        values |= {"cards": [asdict(share) for share in one.cards]}
        values["step_time"] = None if one.step_time is None else asdict(one.step_time)
        assert one.timeline is not None
        found.append([values, list(one.timeline.events[::97]), list(one.timeline.live_bytes()[::97])])
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


@pytest.mark.skipif(passes.compiled is None, reason=f"nothing to compare: {passes.describe()}")
def test_both_cores_answer_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import json; from tests import test_estimator as t; print(json.dumps(t.answers()))"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "VRAMPLAN_PURE_PYTHON": "1", "PYTHONPATH": str(ROOT)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for case, compiled, pure in zip(MANY, answers(), json.loads(done.stdout), strict=True):
        assert compiled == pure, case
