"""The card catalogue: names, sizes, what a card can run."""

from __future__ import annotations

import json
from typing import Any

import pytest

import vramplan
from tests.helpers import ROOT
from vramplan.errors import ConfigError, UnknownNameError
from vramplan.inputs.catalog import all_gpus, find_gpu, gpu_names
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.nvml import Usage, as_reported, local_gpu, usage
from vramplan.units import MiB


def test_the_catalogue() -> None:
    cards = all_gpus()
    names = [name.lower() for name in gpu_names()]
    assert len(names) == len(set(names))
    rows = json.loads((ROOT / "vramplan" / "inputs" / "gpus.json").read_bytes())
    assert [Gpu.model_validate_json(json.dumps(row)) for row in rows] == cards
    for card in cards:
        assert card.cuda_total_bytes <= card.driver_total_bytes
        assert card.flops_per_second["fp32"] > 0
        assert card.sources
        assert find_gpu(card.name) == card
        assert find_gpu(card.title) == card


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("rtx4090", "rtx4090"),
        ("RTX 4090", "rtx4090"),
        ("4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("rtx4090d", "rtx4090d"),
        ("a100-80gb", "a100-80gb-sxm"),
        ("A100_80GB", "a100-80gb-sxm"),
        ("a100", "a100-40gb-sxm"),
        ("h100", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("t4", "t4"),
        ("Tesla T4", "t4"),
        ("mi300x", "mi300x"),
        ("l40s", "l40s"),
    ],
)
def test_names(asked: str, name: str) -> None:
    assert find_gpu(asked).name == name


def test_an_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="rtx4090"):
        find_gpu("rtx4091")


def test_sizes_are_what_drivers_and_cuda_report() -> None:
    card = find_gpu("rtx4090")
    assert card.driver_total_bytes == 24564 * MiB
    assert card.cuda_total_bytes == 24081 * MiB  # the smallest seen in public logs
    assert find_gpu("h200").driver_total_bytes == 143771 * MiB


@pytest.mark.parametrize(("name", "bf16"), [("v100", False), ("t4", False), ("a100", True), ("rtx3090", True)])
def test_bf16(name: str, bf16: bool) -> None:
    assert find_gpu(name).supports("bf16") is bf16
    default = vramplan.estimate("Qwen/Qwen2.5-0.5B", name).job
    assert default.dtype == ("bf16" if bf16 else "fp16")
    if not bf16:
        with pytest.raises(ConfigError, match=r"no bf16 units.*dtype=fp16"):
            vramplan.estimate("Qwen/Qwen2.5-0.5B", name, dtype="bf16")
        full = vramplan.estimate("HuggingFaceTB/SmolLM2-135M", name, method="full").job
        assert (full.dtype, full.autocast) == ("fp32", "fp16")


def test_old_cards_store_all_scores() -> None:
    """Without compute capability 8.0 SDPA has no flash kernel, and grouped heads then take the math fallback."""
    model, job = "TinyLlama/TinyLlama-1.1B-Chat-v1.0", {"dtype": "fp16", "checkpointing": "none"}
    old, new = (vramplan.estimate(model, name, **job) for name in ("t4", "a100"))
    assert old.peak_tensor_bytes > new.peak_tensor_bytes


def test_the_card_in_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    card = as_reported("NVIDIA GeForce RTX 4090", 24564 * MiB, 3000 * MiB)
    assert card.cuda_total_bytes == 24081 * MiB
    assert card.held_bytes == 3000 * MiB - 483 * MiB
    busy = vramplan.estimate("Qwen/Qwen2.5-7B", card)
    free = vramplan.estimate("Qwen/Qwen2.5-7B", "rtx4090")
    assert busy.capacity_bytes == free.capacity_bytes - card.held_bytes
    with pytest.raises(ConfigError, match="not in the catalogue"):
        as_reported("NVIDIA Quadro Unknown", 8 << 30, 0)


class FakeNvml:
    """Stands in for pynvml."""

    class NVMLError(Exception):
        """Its error."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.open = 0

    def nvmlInit(self) -> None:
        if self.fails:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index:
            raise self.NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA A100-SXM4-80GB"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        from types import SimpleNamespace

        return SimpleNamespace(total=81920 * MiB, used=900 * MiB)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        assert name.startswith("GPU-")
        return 5

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        from types import SimpleNamespace

        if handle == 5:
            raise self.NVMLError("Not Supported")
        return [SimpleNamespace(pid=7, usedGpuMemory=None), SimpleNamespace(pid=8, usedGpuMemory=300 * MiB)]


def test_what_processes_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    fake = FakeNvml(fails=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert usage(8) == Usage("580.1", 81920 * MiB, 900 * MiB, 300 * MiB)
    assert usage(7) == Usage("580.1", 81920 * MiB, 900 * MiB, None), "a container numbers its processes itself"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1234,0")
    assert usage(8) == Usage("580.1", 81920 * MiB, 900 * MiB, None), "MIG does not tell"
    assert usage(8, 1) == Usage("580.1", 81920 * MiB, 900 * MiB, 300 * MiB)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert usage(8) is None, "no such card"
    assert fake.open == 0
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(fails=True))
    assert usage(8) is None


def test_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    fake = FakeNvml(fails=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert local_gpu().name == "a100-80gb-sxm"
    assert vramplan.load_gpu("AUTO").held_bytes == 900 * MiB - (81920 - 81038) * MiB
    with pytest.raises(ConfigError, match="does not answer for GPU 7"):
        local_gpu(7)
    assert fake.open == 0
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(fails=True))
    with pytest.raises(ConfigError, match="no NVIDIA driver answers"):
        local_gpu()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(vramplan.VramplanError, match="pip install nvidia-ml-py"):
        local_gpu()
