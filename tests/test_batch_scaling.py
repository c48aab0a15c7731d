"""Steps whose simulations are shared: timelines and estimates are those of a simulation of their own."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tests.helpers import card_of, spec_of
from vramplan.analytic import batch_scaling
from vramplan.analytic.estimator import begin
from vramplan.analytic.job_steps import JobSteps
from vramplan.analytic.prepare import prepare
from vramplan.analytic.run_timeline import SimulatedRun
from vramplan.analytic.unfolded_step import Step
from vramplan.inputs.job import Job, with_batch
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.estimate import Estimate
from vramplan.memory.timeline import Timeline
from vramplan.planner.job_defaults import complete_job

MICROS = (2, 3, 6, 11, 64, 66, 65)
"""At 512 tokens tensors outgrow the allocator's small pool one after another, and with it what a step leaves out."""
FEW_LAYERS: dict[str, Any] = {"num_hidden_layers": 4}
SHARED: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("qwen2.5-0.5b", {}, "rtx4090", {"method": "lora", "sequence_length": 512}),
    ("gemma-2-2b", {}, "t4", {"method": "full", "sequence_length": 777, "checkpointing": "none"}),
    (
        "qwen3-30b-a3b",
        FEW_LAYERS,
        "h200-sxm",
        {"method": "qlora", "sequence_length": 512, "gradient_accumulation_steps": 4},
    ),
    ("smolvlm-256m-instruct", {}, "rtx4090", {"method": "dora", "sequence_length": 2048}),
    ("qwen2.5-0.5b", {}, "rtx4090", {"method": "full", "num_gpus": 2, "strategy": "fsdp"}),
    ("t5-small", {}, "rtx4090", {"method": "full", "sequence_length": 512}),
    ("smollm2-135m", {}, "h100", {"method": "full", "batches": "packed"}),
    ("smollm2-135m", {}, "a100-80gb", {"attention": "eager", "loop": "plain", "gradient_accumulation_steps": 2}),
    ("qwen2.5-0.5b", {}, "rtx3090", {"method": "full", "num_gpus": 4, "strategy": "zero3", "autocast": "none"}),
    ("qwen2.5-0.5b", {}, "rtx4090", {"num_gpus": 3, "strategy": "device_map", "gradient_accumulation_steps": 2}),
    ("smollm2-135m", {}, "rtx4090", {"lengths": (100, 300, 512), "sequence_length": 512}),
    ("whisper-small", {}, "rtx4090", {"method": "lora", "gradient_accumulation_steps": 3}),
]
GROWING: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("qwen3-30b-a3b", FEW_LAYERS, "h100", {"experts": "linear", "quantize": "nf4", "sequence_length": 512}),
    (
        "qwen3-30b-a3b",
        FEW_LAYERS,
        "h100",
        {"experts": "linear", "num_gpus": 2, "strategy": "zero2", "autocast": "none", "gradient_accumulation_steps": 2},
    ),
    ("smollm2-135m", {}, "h100", {"method": "full", "loss": "chunked"}),
    ("qwen2.5-0.5b", {}, "h100", {"method": "full", "loss": "liger", "gradient_accumulation_steps": 8}),
]
"""Operations depend on sizes: small storages of experts are one, and some losses come in chunks."""


def question(model: str, config: dict[str, Any], gpu_name: str, settings: dict[str, Any]) -> tuple[ModelSpec, Job, Any]:
    spec, gpu = spec_of(model, **config), card_of(gpu_name)
    return spec, complete_job(spec, gpu, settings), gpu


def assert_same(shared: Timeline, fresh: Timeline) -> None:
    """Event by event and storage by storage: sizes, streams, and how each is described."""
    assert shared.events == fresh.events
    assert list(shared.marks) == list(fresh.marks)
    streams = [kinds.streams or [0] * len(kinds) for kinds in (shared.kinds, fresh.kinds)]
    in_kernel = [{*kinds.in_kernel} for kinds in (shared.kinds, fresh.kinds)]
    for one, other in set(zip(shared.kind_of, fresh.kind_of, strict=True)):
        storage = fresh.kinds[other]
        assert shared.kinds[one] == storage
        assert shared.kinds.sizes[one] == fresh.kinds.sizes[other] == storage.rounded_bytes
        assert (one in in_kernel[0]) == (other in in_kernel[1]) == storage.in_kernel
        assert streams[0][one] == streams[1][other] == storage.stream
    assert shared.peak_bytes(with_kernels=False) == max(fresh.live_bytes(with_kernels=False))


def assert_equal(shared: Estimate, fresh: Estimate) -> None:
    """Every number and text but the timeline's, one by one, so that a difference is shown."""
    for field in fields(Estimate):
        if field.compare:
            assert getattr(shared, field.name) == getattr(fresh, field.name), field.name


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The micro-batches of all steps that are simulated to be shared."""
    micros: list[int] = []
    simulate = batch_scaling.simulate_step

    def counted(setting: Any, steps: int) -> Any:
        micros.append(setting.job.micro_batch_size)
        return simulate(setting, steps)

    monkeypatch.setattr(batch_scaling, "simulate_step", counted)
    return micros


@pytest.mark.parametrize("case", [*SHARED, *GROWING], ids=str)
def test_shared_steps_are_those_of_simulations_of_their_own(case: Any, simulated: list[int]) -> None:
    spec, job, gpu = question(*case)
    accumulation = job.gradient_accumulation_steps
    steps = JobSteps(spec, job, gpu)
    shared = {micro: steps.begin(micro, accumulation) for micro in MICROS}
    if case in SHARED:
        assert {*simulated} == {2, 3, 129}
    else:
        assert {*MICROS} <= {*simulated}
    for micro in MICROS if case in SHARED else MICROS[-1:]:
        one, alone = shared[micro], begin(spec, with_batch(job, micro, accumulation), gpu)
        assert one.lower_bound_bytes == alone.lower_bound_bytes
        assert one.timelines.keys() == alone.timelines.keys()
        for number, timeline in one.timelines.items():
            assert_same(timeline, alone.timelines[number])
        if micro == MICROS[-1]:
            assert one.compute is not None
            assert alone.compute is not None
            assert one.compute(card_of("t4")) == alone.compute(card_of("t4"))
            assert_equal(one.complete(), alone.complete())


@pytest.mark.parametrize("case", [*SHARED, *GROWING], ids=str)
def test_a_timeline_is_that_of_a_run_laid_out_alone(case: Any) -> None:
    """Both micro-steps simulated, and nothing that estimates share."""
    spec, job, gpu = question(*case)
    job = with_batch(job, 5, 3)
    setting, plan, _ = prepare(spec, job, gpu)
    run = SimulatedRun(Step(setting, plan, gpu))
    steps = JobSteps(spec, job.model_copy(update={"lengths": None}), gpu)
    assert_same(steps.timelines(5, 3)[0], run.timeline)


def test_images_that_are_padded_together_are_simulated_one_by_one(simulated: list[int]) -> None:
    """Qwen2-VL attends over the patches of all images; sizes grow with their square."""
    spec, job, gpu = question(
        "qwen2-vl-2b-instruct", {}, "t4", {"method": "lora", "sequence_length": 2048, "attention": "eager"}
    )
    steps = JobSteps(spec, job, gpu)
    for micro in (2, 5, 7):
        shared = steps.begin(micro, 1)
        fresh = begin(spec, with_batch(job, micro, 1), gpu)
        assert_same(shared.timelines[0], fresh.timelines[0])
        assert_equal(shared.complete(), fresh.complete())
    assert {2, 5, 7} <= {*simulated}
