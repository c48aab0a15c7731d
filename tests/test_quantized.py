"""Quantized bases and 8-bit optimizers against bitsandbytes' own code (tests/quantized.json).

Each case is a traced step of transformers' class with bitsandbytes 0.50.2's CUDA backend in Python, its C library left
out: what it allocates, when, and how long it lives are those of the code that a card runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import card_of, spec_of
from vramplan.analytic.autograd.ops import stored_as
from vramplan.analytic.prepare import prepare
from vramplan.analytic.run_timeline import SimulatedRun
from vramplan.analytic.unfolded_step import Step
from vramplan.errors import ConfigError, UnknownNameError
from vramplan.inputs.job import Job
from vramplan.planner.job_defaults import complete_job

CASES = json.loads((Path(__file__).parent / "quantized.json").read_text())


WHOLE = [case for case in CASES if "live_bytes" in case]
BY_PHASE = [case for case in CASES if "backward" in case]
"""Few rows in the vocabulary, so that layers make the peaks: int8, PEFT's preparation, DoRA, saved modules."""


def name_of(case: dict[str, Any]) -> str:
    usual = {"sequence_length", "micro_batch_size", "lora_rank"}
    return f"{case['model'].rpartition('/')[2]} { {k: v for k, v in case['job'].items() if k not in usual} }"


def played(case: dict[str, Any]) -> SimulatedRun:
    layers = case["layers"]
    changes = {"num_hidden_layers": layers, **({"vocab_size": case["vocabulary"]} if "vocabulary" in case else {})}
    spec = spec_of(case["model"], **changes, **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0))
    if spec.config.get("layer_types"):
        spec = spec_of(case["model"], **{**spec.config, "layer_types": spec.config["layer_types"][:layers]})
    job = {key: tuple(value) if isinstance(value, list) else value for key, value in case["job"].items()}
    setting, plan, _ = prepare(spec, Job(**job), card_of())
    return SimulatedRun(Step(setting, plan, card_of()))


def slack(case: dict[str, Any]) -> float:
    """One of Gemma's two masks, 1024 x 1024."""
    return 1.1 * 1024 * 1024 if "gemma" in case["model"] else 0


@pytest.mark.parametrize("case", WHOLE, ids=name_of)
def test_against_bitsandbytes(case: dict[str, Any]) -> None:
    live = max(played(case).timeline.live_bytes(with_kernels=False))
    assert live == pytest.approx(case["live_bytes"], rel=1e-4, abs=slack(case))


@pytest.mark.parametrize("case", BY_PHASE, ids=name_of)
def test_phase_by_phase(case: dict[str, Any]) -> None:
    """What is alive once all is loaded, and at the worst of forward and backward."""
    run = played(case)
    timeline = run.timeline
    levels = timeline.live_bytes(with_kernels=False)
    (begun, *_) = (mark.first_event for mark in timeline.marks if mark.phase == "forward")
    found = {**timeline.phase_peaks(levels), "loaded": levels[begun - 1]}
    for phase in ("loaded", "forward", "backward"):
        assert found[phase] == pytest.approx(case[phase], rel=1e-3, abs=slack(case)), phase
    assert sum(weight.num_elements for weight in run.step.trained) == case["trained"]


def test_what_a_layer_is_stored_as() -> None:
    """QLoRA (Dettmers et al. 2023, section 3): 0.5 bits of scales a weight, 0.127 once they are quantized too."""
    count = 4096 * 14336
    bits = [8 * sum(size for _, size, _ in stored_as(kind, (4096, 14336))) / count for kind in ("nf4", "nf4-double")]
    assert bits == [pytest.approx(4.5, abs=1e-4), pytest.approx(4.127, abs=1e-3)]


def test_llama_8b() -> None:
    """Weights, scales, tables, rank-16 adapters of Llama-3.1-8B in bitsandbytes' own tensors: 5,870,312,832 bytes."""
    found = vramplan.estimate("meta-llama/Llama-3.1-8B", "h100", method="qlora", lora_rank=16)
    # what the last adapters' kernels and casts hold for a moment comes on top
    assert found.phases["loaded"] == pytest.approx(5_870_312_832, rel=3e-3)
    assert found.num_parameters == 8_030_261_248, "weights count as weights, however they are stored"


def test_what_goes_with_it() -> None:
    spec, card = spec_of("Qwen/Qwen2.5-0.5B"), card_of()
    assert complete_job(spec, card, {"method": "qlora"}).quantize == "nf4"
    for given, error in (
        ({"method": "full", "quantize": "nf4"}, ConfigError),
        ({"method": "lora", "prepare_for_kbit_training": True}, ConfigError),
        ({"method": "lora", "saved_dtype": "fp32"}, ConfigError),
        ({"method": "full", "modules_to_save": ("lm_head",)}, ConfigError),
        ({"quantize": "nf4", "prepare_for_kbit_training": True, "autocast": "none", "attention": "flash"}, ConfigError),
        ({"modules_to_save": ("mlp",)}, UnknownNameError),
        ({"modules_to_save": ("q_proj",), "lora_targets": ("q_proj",)}, ConfigError),
    ):
        with pytest.raises(error, match=r"quantize=|saved_dtype|modules_to_save|attention=flash"):
            vramplan.estimate(spec, card, **given)


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_parameter"),
    [
        ("adamw_8bit", 2 + 8 / 256),
        ("lion_8bit", 1 + 4 / 256),
        ("ademamix_8bit", 3 + 12 / 256),
        ("paged_adamw_32bit", 0),
    ],
)
def test_states_of_full_training(optimizer: str, bytes_per_parameter: float) -> None:
    """Linear layers of Llama-3.1-8B; embeddings keep fp32 states in the Trainer, paged ones are managed memory."""
    found = vramplan.estimate("meta-llama/Llama-3.1-8B", "b300", method="full", optimizer=optimizer)
    embedding, head = 128256 * 4096, 128256 * 4096
    rest = found.num_parameters - embedding
    times = {"adamw_8bit": 8, "lion_8bit": 4, "ademamix_8bit": 12, "paged_adamw_32bit": 0}[optimizer]
    assert head < rest
    assert found.by_category()["optimizer_state"] == pytest.approx(
        rest * bytes_per_parameter + embedding * times, rel=2e-3, abs=4 << 20
    )
