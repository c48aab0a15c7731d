"""ZeRO 1 and 2 with overlap_comm beside PyTorch's CUDA build on emulated GPUs (tests/zero_overlap_runs.jsonl)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests import zero_overlap
from tests.recorded_runs import rows_of
from vramplan.frameworks.detect import from_path
from vramplan.planner import check

RUNS = rows_of(zero_overlap.RUNS)


@pytest.mark.parametrize("row", [pytest.param(row, id=row["name"]) for row in RUNS])
def test_allocated_and_reserved_peaks_agree(row: dict[str, Any]) -> None:
    found = vramplan.estimate(row["model"], row["gpu"], **row["job"])
    assert found.peak_allocated_bytes == pytest.approx(row["allocated_bytes"], rel=0.00001)
    assert found.peak_reserved_bytes == pytest.approx(row["reserved_bytes"], rel=0.002)


def test_each_run_is_there() -> None:
    rows = [{name: row[name] for name in ("name", "model", "gpu", "job")} for row in RUNS]
    assert rows == list(zero_overlap.cases())


def test_overlap_at_stage_1_needs_two_buckets_from_the_first_micro_batch_on() -> None:
    """DeepSpeed's own size of a bucket where its file names none; hooks allocate both (setup_buckets)."""
    job: dict[str, Any] = {"num_gpus": 2, "strategy": "zero1", "gradient_accumulation_steps": 4, "method": "lora"}
    size = 500_000_000
    alone, beside = (
        vramplan.estimate(
            "qwen2.5-0.5b", "a100-80gb", **job, zero={"overlap_comm": overlaps, "reduce_bucket_size": size}
        )
        for overlaps in (False, True)
    )
    assert beside.peak_allocated_bytes - alone.peak_allocated_bytes == pytest.approx(2 * size, rel=0.01)


def test_axolotls_zero1_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("base_model: Qwen/Qwen2.5-0.5B\nbf16: true\nmicro_batch_size: 1\nsequence_len: 512\n"
                    "flash_attention: true\ndeepspeed: z1.json\n")  # fmt: skip
    (tmp_path / "z1.json").write_text(
        '{"zero_optimization": {"stage": 1, "overlap_comm": true}, "bf16": {"enabled": true}}'
    )
    config = check.read(from_path(path, None), 2)
    assert (config.job["strategy"], config.job["zero"]["overlap_comm"]) == ("zero1", True)
    assert vramplan.check(path, "a100-80gb", num_gpus=2).fits
