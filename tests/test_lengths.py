"""Samples of different lengths: what they leave in torch's cache before the longest comes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import card_of, cli, cli_json, spec_of
from vramplan.errors import ConfigError
from vramplan.inputs.job import Job
from vramplan.inputs.sample_lengths import batch_lengths, lengths_of
from vramplan.planner import check
from vramplan.planner.levers import memory_levers
from vramplan.planner.table import fill, table_request
from vramplan.units import GiB, MiB

QWEN = "Qwen/Qwen2.5-0.5B"
SWIFT: dict[str, Any] = {
    "loss": "sliced",
    "attention": "flash",
    "lora_dropout": 0.05,
    "lora_targets": ("q_proj", "k_proj", "v_proj"),
    "optimizer": "adamw_torch",
    "gradient_accumulation_steps": 16,
}
"""What ms-swift's benchmark says (docs/source_en/LLM/Benchmark.md at 2.6.1); Qwen 1.5 has the shapes of Qwen."""


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("model", "longest", "reserved_gib"),
    [
        ("Qwen/Qwen1.5-1.8B", 1024, 10.7),
        ("Qwen/Qwen1.5-7B", 1024, 21.7),
        ("Qwen/Qwen1.5-7B", 2048, 27.7),
        ("Qwen/Qwen1.5-14B", 2048, 40.1),
        ("01-ai/Yi-6B", 1024, 15.4),
    ],
)
def test_published_runs_whose_lengths_vary(model: str, longest: int, reserved_gib: float) -> None:
    """Their lengths are not known; drawn evenly they come nearer than if all were as long as the limit."""
    given = {"sequence_length": longest, **SWIFT}
    drawn = vramplan.estimate(model, "a100-80gb", lengths=f"64-{longest}", **given).peak_reserved_bytes / GiB
    equal = vramplan.estimate(model, "a100-80gb", **given).peak_reserved_bytes / GiB
    assert equal < 0.86 * reserved_gib
    assert drawn == pytest.approx(reserved_gib, rel=0.2)
    assert abs(drawn - reserved_gib) < 0.65 * abs(equal - reserved_gib)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_accumulation_steps": 3},
        {"method": "full", "gradient_accumulation_steps": 2},
        {"strategy": "zero2", "num_gpus": 2, "autocast": "none", "gradient_accumulation_steps": 4},
        {"strategy": "fsdp", "num_gpus": 2},
        {"loop": "plain", "checkpointing": "none", "quantize": "nf4"},
    ],
)
def test_tensors_are_those_of_the_longest(settings: dict[str, Any]) -> None:
    """Nothing is lost or kept between micro-batches: what is alive at the peak and behind a step is the same."""
    equal = vramplan.estimate(QWEN, "rtx4090", sequence_length=512, **settings)
    found = vramplan.estimate(QWEN, "rtx4090", sequence_length=512, lengths=(100, 300, 400, 512), **settings)
    assert found.peak_tensor_bytes == pytest.approx(equal.peak_tensor_bytes, abs=MiB)
    assert found.peak_allocated_bytes == pytest.approx(equal.peak_allocated_bytes, abs=64 * MiB)
    behind, alone = (sum(one.timeline.live_bytes()[-1:]) for one in (found, equal))
    assert behind == alone
    assert found.peak_reserved_bytes > equal.peak_reserved_bytes


def test_equal_lengths_given_one_by_one_are_equal() -> None:
    given = vramplan.estimate(QWEN, "rtx4090", sequence_length=512, lengths=(512,))
    equal = vramplan.estimate(QWEN, "rtx4090", sequence_length=512)
    assert given.device_total_bytes == equal.device_total_bytes


def test_a_micro_batch_is_as_long_as_its_longest() -> None:
    job = Job(lengths=(10, 40, 20), micro_batch_size=2, sequence_length=30)
    assert batch_lengths(job)[:4] == [30, 20, 30, 30]
    assert batch_lengths(job)[-1] == 30
    found = lengths_of("128-2048")
    assert (max(found), found) == (2048, lengths_of("128-2048"))
    assert min(found) >= 128
    assert lengths_of("300, 1200") == (300, 1200)


@pytest.mark.parametrize("given", ["0-100", "200-100", "a", "1,,2", "-5", "12.5", "", [], [0], ["1"], 7])
def test_broken_lengths(given: Any) -> None:
    with pytest.raises(ConfigError, match="lengths: expected"):
        vramplan.estimate(QWEN, "rtx4090", lengths=given)


def test_where_they_have_no_meaning() -> None:
    with pytest.raises(ConfigError, match="packed rows are all full"):
        vramplan.estimate(QWEN, "rtx4090", lengths="64-512", batches="packed")
    with pytest.raises(ConfigError, match="lengths is not tabled yet"):
        fill(table_request([QWEN], ["rtx4090"], lengths="64-512"))


def test_the_command_line() -> None:
    job = ("estimate", QWEN, "--gpu", "h100", "--lengths", "64-1024", "--batches", "padded", "--micro-batch", "4")
    found = cli_json(*job)
    assert found["job"]["sequence_length"] == 1024
    assert "behind 48 micro-batches whose samples have" in " ".join(cli(*job, "-v").stdout.split())
    joined = vramplan.estimate(
        QWEN, "h100", lengths="64-1024", batches="padded", micro_batch_size=4, expandable_segments=True
    )
    assert joined.peak_reserved_bytes < 0.8 * found["peak_reserved_bytes"]
    assert joined.peak_reserved_bytes < 1.25 * joined.peak_allocated_bytes
    apart = joined.job.model_copy(update={"expandable_segments": False})
    (lever,) = (one for one in memory_levers(spec_of(QWEN), apart, card_of(), 0) if "expandable" in one.change)
    assert lever.update == {"expandable_segments": True}


def test_a_data_set_brings_its_own(tmp_path: Path) -> None:
    """Its longest sample alone would fit; what shorter ones leave behind is counted with it."""
    config = tmp_path / "run.yaml"
    config.write_text("model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\nbf16: true\n", encoding="utf-8")
    rows = [json.dumps({"instruction": "a" * (40 * n), "output": "b" * (30 * n)}) for n in range(1, 80)]
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(rows), encoding="utf-8")
    found = check.check(config, "h100", dataset=data)
    equal = vramplan.estimate("Qwen/Qwen2.5-7B", "h100", **found.estimate.job.settings | {"lengths": None})
    assert found.estimate.job.lengths
    assert found.estimate.peak_tensor_bytes == equal.peak_tensor_bytes
    assert found.estimate.peak_reserved_bytes > equal.peak_reserved_bytes
