"""Experts of linear layers, as before transformers 5, against its own models (tests/linear_experts.json).

Each case is a step of transformers 4.57.6's class with PEFT 0.18.1, run for real on the CPU and watched storage by
storage, four bits and eight with bitsandbytes 0.50.2's CUDA backend in Python, its C library left out. 256 tokens are
routed evenly; 12 experts, or 8, so that one stands for most of them. Few rows in the vocabulary let layers make the
peaks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import card_of, spec_of
from vramplan.analytic import estimator
from vramplan.analytic.autograd.repeated_experts import turns_of
from vramplan.analytic.played_step import Step
from vramplan.analytic.run_timeline import SimulatedRun
from vramplan.errors import VramplanError
from vramplan.inputs.job import Job, Zero

MEASURED = json.loads((Path(__file__).parent / "linear_experts.json").read_text())
QWEN3 = "Qwen/Qwen3-30B-A3B"
EXPERTS, LAYERS, WIDTH, INNER, RANK = 128, 48, 2048, 768, 8


def played(name: str, config: dict[str, Any], **job: Any) -> SimulatedRun:
    spec = spec_of(name, **config, **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0))
    setting, plan, _ = estimator.prepare(spec, Job(**job, experts="linear"), card_of())
    return SimulatedRun(Step(setting, plan, card_of()))


@pytest.mark.parametrize("case", MEASURED["cases"], ids=lambda case: f"{case['model']} {case['job']}")
def test_phase_by_phase(case: dict[str, Any]) -> None:
    """What is alive once all is loaded, and at the worst of each phase; the forward's is PhiMoE's attention's own."""
    name, given = case["model"], {key: tuple(v) if isinstance(v, list) else v for key, v in case["job"].items()}
    run = played(name, MEASURED["models"][name], attention="eager", sequence_length=256, **given)
    timeline = run.timeline
    levels = timeline.live_bytes(with_kernels=False)
    (begun, *_) = (mark.first_event for mark in timeline.marks if mark.phase == "forward")
    found = {**timeline.phase_peaks(levels), "loaded": levels[begun - 1]}
    assert max(found.values()) == pytest.approx(max(case[phase] for phase in found), rel=3.2e-3)
    for phase in ("loaded", "backward", "optimizer"):
        assert found[phase] == pytest.approx(case[phase], rel=3.2e-3), phase
    assert found["forward"] == pytest.approx(
        case["forward"], rel=0.04 if given.get("prepare_for_kbit_training") else 0.02
    )
    assert sum(weight.num_elements for weight in run.step.trained) == case["trained"]


def test_one_stands_for_most() -> None:
    """Played for themselves or not, experts take the same."""
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
        one = played(QWEN3, config, **job)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "vramplan.analytic.layers.moe_linear_experts.turns_of",
                lambda count: [(number, 1) for number in range(count)],
            )
            all_ = played(QWEN3, config, **job)
        assert one.step.num_parameters == all_.step.num_parameters
        assert one.timeline.phase_peaks(one.timeline.live_bytes()) == all_.timeline.phase_peaks(
            all_.timeline.live_bytes()
        )
        assert sum(k.flops * n for k, n in one.step.kernels()[0]) == sum(k.flops * n for k, n in all_.step.kernels()[0])


def test_what_the_allocator_makes_of_it() -> None:
    """Small storages in one: the allocator reserves as much as for each."""
    spec = spec_of(QWEN3, num_hidden_layers=3)
    given: dict[str, Any] = {"quantize": "nf4", "checkpointing": "none", "experts": "linear"}
    one = vramplan.estimate(spec, "h200", **given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "vramplan.analytic.layers.moe_linear_experts.turns_of",
            lambda count: [(number, 1) for number in range(count)],
        )
        each = vramplan.estimate(spec, "h200", **given)
    assert one.peak_allocated_bytes == pytest.approx(each.peak_allocated_bytes, rel=1e-4)
    assert one.peak_reserved_bytes == pytest.approx(each.peak_reserved_bytes, rel=0.01)


def test_who_takes_turns() -> None:
    assert turns_of(4) == [(number, 1) for number in range(4)]
    assert turns_of(EXPERTS) == [(0, 1), (1, 125), (126, 1), (127, 1)]


@pytest.mark.parametrize("name", sorted(MEASURED["models"]))
def test_parameters_are_the_same(name: str) -> None:
    assert played(name, {}).step.num_parameters == spec_of(name).num_parameters


def test_all_linear_is_every_expert() -> None:
    """Rank 8 on three layers of every expert, on the router, and on attention; nf4 halves a byte a weight."""
    attention = ("q_proj", "k_proj", "v_proj", "o_proj")
    given: dict[str, Any] = {"sequence_length": 256, "lora_rank": RANK, "experts": "linear"}
    found = vramplan.estimate(QWEN3, "h200", quantize="nf4", **given)
    alone = vramplan.estimate(QWEN3, "h200", lora_targets=attention, **given)
    experts = LAYERS * EXPERTS * 3 * RANK * (WIDTH + INNER)
    router = LAYERS * RANK * (WIDTH + EXPERTS)
    assert found.num_trainable_parameters == alone.num_trainable_parameters + experts + router
    assert found.by_category()["parameter"] < 20 << 30 < 56 << 30 < alone.by_category()["parameter"]
    assert any("evenly" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "given", "said"),
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
def test_what_is_refused(name: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError, match=said):
        vramplan.estimate(name, "h200", experts="linear", **given)


def test_stacked_before_too() -> None:
    found = vramplan.estimate("openai/gpt-oss-20b", "h200", experts="linear", lora_targets=("q_proj",))
    assert any("stacks its experts in transformers 4 too" in note for note in found.notes)
