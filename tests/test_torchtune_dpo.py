"""torchtune's DPO recipe on the tape, compared with its own code on fake tensors (tests/torchtune_runs.jsonl)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.recorded_runs import estimated_peaks
from tests.torchtune_runs import recorded
from tests.trl_runs import GPU
from vramplan import check, estimate
from vramplan.errors import VramplanError

RECORDED = recorded()
POSITIONS = {"max_position_embeddings": 1024}
"""Of the tables that the runs make."""
CONFIG = Path(__file__).parent / "configs/torchtune/dpo.yaml"


def name_of(row: dict[str, Any]) -> str:
    return f"{row['model']} {' '.join(f'{name}={value}' for name, value in row['job'].items())}"


@pytest.mark.parametrize("row", RECORDED, ids=name_of)
def test_peaks_agree_with_the_recipe(row: dict[str, Any]) -> None:
    own = {"config": row["config"] | POSITIONS, "job": row["job"] | {"layers_of": "torchtune"}}
    peaks = estimated_peaks(row | own, GPU)
    assert peaks.keys() == row["peaks"].keys()
    assert max(peaks.values()) == pytest.approx(max(row["peaks"].values()), rel=0.001)
    for phase, size in row["peaks"].items():
        assert peaks[phase] == pytest.approx(size, rel=0.015), phase


def test_there_are_runs() -> None:
    assert len(RECORDED) >= 10


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loop": "trainer"}, "loop plain|loop=plain"),
        ({"method": "full"}, "method=lora"),
        ({"num_gpus": 2}, "num_gpus=1"),
        ({"reference": "precomputed"}, "reference=adapters_off"),
        ({"autocast": "bf16"}, "autocast=none"),
    ],
)
def test_what_the_recipe_does_not_do(settings: dict[str, Any], said: str) -> None:
    job = {"task": "dpo", "loss": "scaled_log_softmax", "loop": "plain", "autocast": "none", **settings}
    with pytest.raises(VramplanError, match=said):
        estimate("llama-3.2-1b", "h100", sequence_length=512, **job)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"recipe": "full_finetune_single_device"}, "does not train with"),
        ({"recipe": "lora_dpo_distributed"}, "say how many: tune run --nproc_per_node 2"),
        ({"recipe": "lora_dpo_single_device", "loss._component_": "torchtune.rlhf.loss.SimPOLoss"}, "not modelled"),
    ],
)
def test_recipes_and_losses(more: dict[str, str], said: str) -> None:
    with pytest.raises(VramplanError, match=said):
        check(CONFIG, "h100", num_gpus=1, settings=more)
