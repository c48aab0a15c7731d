"""`vramplan measure` on GPUs that cannot run every case of the matrix."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import card_of, cli
from vramplan.inputs import nvml
from vramplan.measurements import matrix, measure, probe


@pytest.mark.parametrize(("gpu", "skipped"), [("a100-40gb", 0), ("rtx4090", 1), ("t4", 6)])
def test_cases_that_a_gpu_cannot_run_are_skipped(
    gpu: str, skipped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An RTX 4090 stands in for no A100 40 GB; a T4 for no RTX 4090 either, and it has no bf16 autocast."""
    monkeypatch.setattr(nvml, "local_gpu", lambda device=0: card_of(gpu))
    device = probe.probe_device()
    lines = measure.impossible(device)
    assert len(lines) == skipped
    assert all(": skipped, " in line for line in lines)
    assert len(measure.left(device, tmp_path)) == len(matrix.CASES) - skipped


def test_the_command_says_what_it_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "local_gpu", lambda device=0: card_of("rtx4090"))
    result = cli("measure", "--out", str(tmp_path), "--list", "--only", "as a100")
    assert not result.returncode, result.stderr
    shown = " ".join(result.stdout.split())
    assert "as a100-40gb largest: skipped, needs 39.49 GiB, the RTX 4090 here has" in shown
    assert "Nothing is left: every run that this GPU can do" in shown
