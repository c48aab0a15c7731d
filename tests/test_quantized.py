"""Four-bit bases and 8-bit optimizers against bitsandbytes' own code (tests/quantized.json).

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
from vramplan.analytic import estimator
from vramplan.analytic.net import four_bits
from vramplan.analytic.step import Step
from vramplan.defaults import complete_job
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.job import Job

CASES = json.loads((Path(__file__).parent / "quantized.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['model'].rpartition('/')[2]} {case['job']}")
def test_against_bitsandbytes(case: dict[str, Any]) -> None:
    spec = spec_of(case["model"], num_hidden_layers=case["layers"])
    setting, plan, _ = estimator.prepare(spec, Job(**case["job"]), card_of())
    live = max(Step(setting, plan, card_of()).timeline.live_bytes(with_kernels=False))
    mask = 1.1 * 1024 * 1024 if "gemma" in case["model"] else 0  # one of its two masks, 1024 x 1024
    assert live == pytest.approx(case["live_bytes"], rel=1e-4, abs=mask)


def test_what_a_layer_is_stored_as() -> None:
    """QLoRA (Dettmers et al. 2023, section 3): 0.5 bits of scales a weight, 0.127 once they are quantized too."""
    count = 4096 * 14336
    bits = [8 * sum(size for _, size, _ in four_bits(count, kind)) / count for kind in ("nf4", "nf4-double")]
    assert bits == [pytest.approx(4.5, abs=1e-4), pytest.approx(4.127, abs=1e-3)]


def test_llama_8b() -> None:
    """Weights, scales, tables, rank-16 adapters of Llama-3.1-8B in bitsandbytes' own tensors: 5,870,312,832 bytes."""
    found = vramplan.estimate("meta-llama/Llama-3.1-8B", "h100", method="qlora", lora_rank=16)
    assert found.phases["loaded"] == pytest.approx(5_870_312_832, rel=1e-3)
    assert found.num_parameters == 8_030_261_248, "weights count as weights, however they are stored"


def test_what_goes_with_it() -> None:
    spec, card = spec_of("Qwen/Qwen2.5-0.5B"), card_of()
    assert complete_job(spec, card, {"method": "qlora"}).quantize == "nf4"
    for given, error in (
        ({"method": "full", "quantize": "nf4"}, ConfigError),
        ({"method": "lora", "quantize": "int8"}, UnsupportedError),
    ):
        with pytest.raises(error, match="--quantize"):
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
