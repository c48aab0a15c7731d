"""Experts as separate linear layers (transformers < 5), compared with measured steps (tests/linear_experts.json).

Each case is a step of transformers 4.57.6's class with PEFT 0.18.1 on the CPU, measured storage by storage; four and
eight bits with bitsandbytes 0.50.2's CUDA backend in Python, without its C library. 256 tokens are routed evenly; 12
experts, or 8, so that one stands for most of them. The vocabulary is small, so that the peaks are in the layers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import card_of, flops_of, spec_of
from vramplan.analytic.autograd.repeated_experts import repetitions
from vramplan.analytic.prepare import prepare
from vramplan.analytic.run_timeline import SimulatedRun
from vramplan.analytic.unfolded_step import Step
from vramplan.errors import VramplanError
from vramplan.inputs.job import Job
from vramplan.inputs.sharding import Zero

MEASURED = json.loads((Path(__file__).parent / "linear_experts.json").read_text())
QWEN3 = "Qwen/Qwen3-30B-A3B"
EXPERTS, LAYERS, WIDTH, INNER, RANK = 128, 48, 2048, 768, 8


def simulated(name: str, config: dict[str, Any], **job: Any) -> SimulatedRun:
    spec = spec_of(name, **config, **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0))
    setting, plan, _ = prepare(spec, Job(**job, experts="linear"), card_of())
    return SimulatedRun(Step(setting, plan, card_of()))


@pytest.mark.parametrize("case", MEASURED["cases"], ids=lambda case: f"{case['model']} {case['job']}")
def test_phase_by_phase(case: dict[str, Any]) -> None:
    """Bytes alive after loading, and the peak of each phase; PhiMoE's forward peaks in its attention."""
    name, settings = case["model"], {key: tuple(v) if isinstance(v, list) else v for key, v in case["job"].items()}
    run = simulated(name, MEASURED["models"][name], attention="eager", sequence_length=256, **settings)
    timeline = run.timeline
    levels = timeline.live_bytes(with_kernels=False)
    (first_forward_event, *_) = (mark.first_event for mark in timeline.marks if mark.phase == "forward")
    phases = {**timeline.phase_peaks(levels), "loaded": levels[first_forward_event - 1]}
    assert max(phases.values()) == pytest.approx(max(case[phase] for phase in phases), rel=3.2e-3)
    for phase in ("loaded", "backward", "optimizer"):
        assert phases[phase] == pytest.approx(case[phase], rel=3.2e-3), phase
    assert phases["forward"] == pytest.approx(
        case["forward"], rel=0.04 if settings.get("prepare_for_kbit_training") else 0.02
    )
    assert sum(weight.num_elements for weight in run.step.trained) == case["trained"]


def test_one_stands_for_most() -> None:
    """Peaks and FLOPs are the same if every expert is simulated."""
    config = MEASURED["models"][QWEN3] | {"num_experts": 9, "num_experts_per_tok": 3}
    zero: dict[str, Any] = {"strategy": "zero2", "num_gpus": 4, "autocast": "none"}
    jobs: tuple[dict[str, Any], ...] = (
        {"quantize": "nf4"},
        {"method": "full", "checkpointing": "none"},
        {"gradient_accumulation_steps": 2},
        {**zero, "gradient_accumulation_steps": 2},
        {**zero, "method": "full", "zero": Zero(reduce_bucket_size=100_000)},
    )
    for job in jobs:
        folded = simulated(QWEN3, config, **job)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "vramplan.analytic.layers.moe_linear_experts.repetitions",
                lambda count: [(number, 1) for number in range(count)],
            )
            unfolded = simulated(QWEN3, config, **job)
        assert folded.step.num_parameters == unfolded.step.num_parameters
        assert folded.timeline.phase_peaks(folded.timeline.live_bytes()) == unfolded.timeline.phase_peaks(
            unfolded.timeline.live_bytes()
        )
        assert flops_of(folded.step) == flops_of(unfolded.step)


def test_reserved_bytes_of_joined_storages() -> None:
    """Small storages joined in one: the allocator reserves as much as for separate ones."""
    spec = spec_of(QWEN3, num_hidden_layers=3)
    settings: dict[str, Any] = {"quantize": "nf4", "checkpointing": "none", "experts": "linear"}
    folded = vramplan.estimate(spec, "h200", **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "vramplan.analytic.layers.moe_linear_experts.repetitions",
            lambda count: [(number, 1) for number in range(count)],
        )
        unfolded = vramplan.estimate(spec, "h200", **settings)
    assert folded.peak_allocated_bytes == pytest.approx(unfolded.peak_allocated_bytes, rel=1e-4)
    assert folded.peak_reserved_bytes == pytest.approx(unfolded.peak_reserved_bytes, rel=0.01)


def test_repetitions() -> None:
    assert repetitions(4) == [(number, 1) for number in range(4)]
    assert repetitions(EXPERTS) == [(0, 1), (1, 125), (126, 1), (127, 1)]


@pytest.mark.parametrize("name", sorted(MEASURED["models"]))
def test_parameters_are_the_same(name: str) -> None:
    assert simulated(name, {}).step.num_parameters == spec_of(name).num_parameters


def test_all_linear_is_every_expert() -> None:
    """Rank 8 on three layers of every expert, on the router, and on attention; nf4 halves a byte a weight."""
    attention = ("q_proj", "k_proj", "v_proj", "o_proj")
    settings: dict[str, Any] = {"sequence_length": 256, "lora_rank": RANK, "experts": "linear"}
    result = vramplan.estimate(QWEN3, "h200", quantize="nf4", **settings)
    attention_only = vramplan.estimate(QWEN3, "h200", lora_targets=attention, **settings)
    experts = LAYERS * EXPERTS * 3 * RANK * (WIDTH + INNER)
    router = LAYERS * RANK * (WIDTH + EXPERTS)
    assert result.num_trainable_parameters == attention_only.num_trainable_parameters + experts + router
    assert result.by_category()["parameter"] < 20 << 30 < 56 << 30 < attention_only.by_category()["parameter"]
    assert any("evenly" in note for note in result.notes)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            QWEN3,
            {"strategy": "zero3", "num_gpus": 2},
            "strategy=zero3: qwen3_moe with experts as separate linear layers",
        ),
        (
            "moonshotai/Moonlight-16B-A3B",
            {"quantize": "nf4", "prepare_for_kbit_training": True},
            "stops at these experts with prepare_model",
        ),
        (QWEN3, {"by": "trace"}, "transformers before 5|needs torch"),
    ],
)
def test_refused_jobs(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(VramplanError, match=message):
        vramplan.estimate(name, "h200", experts="linear", **settings)


def test_stacked_before_too() -> None:
    result = vramplan.estimate("openai/gpt-oss-20b", "h200", experts="linear", lora_targets=("q_proj",))
    assert any("stacks its experts in transformers 4 too" in note for note in result.notes)


def test_what_they_were_before_may_not_be_known() -> None:
    result = vramplan.estimate("Qwen/Qwen3-Next-80B-A3B-Instruct", "h200", experts="linear", lora_targets=("q_proj",))
    assert any("before transformers 5 is not known" in note for note in result.notes)
