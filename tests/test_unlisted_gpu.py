"""A GPU in this machine that the catalogue lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

import vramplan
from tests.helpers import card_of
from vramplan.errors import ConfigError
from vramplan.inputs import nvml
from vramplan.inputs.cuda_driver import DeviceProperties, device_properties
from vramplan.inputs.gpu import Gpu
from vramplan.measurements.probe import ProbeDevice
from vramplan.units import MiB

ADA = DeviceProperties(10_000 * MiB, "8.9", 40)


def reported(monkeypatch: pytest.MonkeyPatch, properties: DeviceProperties | None, title: str) -> Gpu:
    monkeypatch.setattr(nvml, "device_properties", lambda device: properties)
    return nvml.as_reported(title, 10_240 * MiB, 500 * MiB)


def test_what_decides_memory_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = reported(monkeypatch, ADA, "NVIDIA RTX A1234 Ada")
    assert (gpu.name, gpu.title) == ("nvidia-rtx-a1234-ada", "NVIDIA RTX A1234 Ada")
    assert (gpu.compute_capability, gpu.multiprocessors) == ("8.9", 40)
    assert (gpu.driver_total_bytes, gpu.cuda_total_bytes, gpu.held_bytes) == (10_240 * MiB, 10_000 * MiB, 260 * MiB)
    assert gpu.supports("bf16")
    like = card_of("rtx4090").model_copy(update={"cuda_total_bytes": 10_000 * MiB, "held_bytes": 260 * MiB})
    one, other = (vramplan.estimate("Qwen/Qwen2.5-0.5B", either) for either in (gpu, like))
    assert (one.peak_allocated_bytes, one.peak_reserved_bytes) == (
        other.peak_allocated_bytes,
        other.peak_reserved_bytes,
    )


def test_its_times_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest GPU of its kind lends its rates for ranking batches; no time is shown."""
    gpu = reported(monkeypatch, ADA, "NVIDIA RTX A1234 Ada")
    assert gpu.rates_from == "RTX 4000 Ada"
    assert reported(monkeypatch, replace(ADA, multiprocessors=44), "NVIDIA GeForce RTX 9060").form == "desktop"
    estimate = vramplan.estimate("Qwen/Qwen2.5-0.5B", gpu)
    assert estimate.step_time is None
    assert any("rates of the NVIDIA RTX A1234 Ada are not listed" in note for note in estimate.notes)


def test_what_the_catalogue_cannot_help_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no GPU there has its compute capability, 5\.2; name a similar one"):
        reported(monkeypatch, replace(ADA, compute_capability="5.2"), "NVIDIA Quadro Unknown")
    with pytest.raises(ConfigError, match="CUDA's driver does not tell its compute capability"):
        reported(monkeypatch, None, "NVIDIA Quadro Unknown")


def test_without_a_driver_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    assert device_properties() is None


def test_a_stand_in_is_estimated_with_the_kernels_that_run() -> None:
    """A T4 has no flash attention; an RTX 4090 that stands in for it has."""
    t4, rtx4090 = card_of("t4"), card_of("rtx4090")
    device = ProbeDevice(t4, capped=True, local_gpu=rtx4090)
    assert device.running_gpu.runs_flash
    assert device.running_gpu.usable_bytes == t4.usable_bytes
    assert not ProbeDevice(t4, local_gpu=t4).running_gpu.runs_flash
