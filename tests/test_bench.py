"""What is asked of a card: its meter, its driver, which card it is; all of it with stand-ins, no card needed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="probes need the extra vramplan[probe]")

from tests.helpers import card_of  # noqa: E402
from tests.test_trace import job_of, small  # noqa: E402
from vramplan.errors import ConfigError  # noqa: E402
from vramplan.inputs import nvml  # noqa: E402
from vramplan.measurements import probe, subprocess_runner  # noqa: E402
from vramplan.memory.measurement import Request  # noqa: E402

LLAMA = small("llama", num_key_value_heads=2)


class FakeCuda:
    """Stands in for torch.cuda: counters that say what they were asked."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.allocated = 100

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.said.append(name)

    def memory_stats(self, device: Any) -> dict[str, int]:
        self.allocated += 10
        return {f"{what}_bytes.all.peak": self.allocated for what in ("allocated", "reserved", "requested")}

    def get_device_properties(self, device: Any) -> Any:
        from types import SimpleNamespace

        return SimpleNamespace(total_memory=1000)

    def set_per_process_memory_fraction(self, share: float, device: Any) -> None:
        self.said.append(f"cap {share}")


def test_the_meter_of_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the card, reads the peaks, and resets them between phases; a phase keeps its highest."""
    from vramplan.torch_backend.probe import cuda_meter

    cuda = FakeCuda()
    monkeypatch.setattr(cuda_meter.torch, "cuda", cuda)
    monkeypatch.setattr(cuda_meter.torch, "empty", lambda *args, **kwargs: None)
    meter = cuda_meter.CudaMeter(torch.device("cuda", 0), 250, history=False)
    meter.start()
    assert "cap 0.25" in cuda.said
    cuda.said.clear()
    for phase in ("loaded", "forward", "backward", "forward", ""):
        meter.enter(phase)
    assert cuda.said == ["synchronize", "reset_peak_memory_stats"] * 5
    assert {name: peaks.allocated_bytes for name, peaks in meter.phases.peaks.items()} == {
        "loaded": 120,
        "forward": 150,
        "backward": 140,
    }
    assert set(meter.phases.take_seconds()) == {"loaded", "forward", "backward"}
    assert not meter.phases.take_seconds()


@pytest.mark.parametrize(
    ("built", "count", "said"),
    [(None, 0, "is built without CUDA"), ("13.0", 0, "no CUDA GPU is visible"), ("13.0", 1, "GPU number 1")],
)
def test_why_there_is_no_card(monkeypatch: pytest.MonkeyPatch, built: str | None, count: int, said: str) -> None:
    from vramplan.torch_backend.probe import run

    monkeypatch.setattr(run.torch.version, "cuda", built)
    monkeypatch.setattr(run.torch.cuda, "init", lambda: None)
    monkeypatch.setattr(run.torch.cuda, "device_count", lambda: count)
    job = job_of(num_gpus=2)
    with pytest.raises(ConfigError, match=said):
        run.run(Request(spec=LLAMA, job=job, card=card_of("h100"), local_rank=1), lambda what, share: None)


def test_a_driver_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    from vramplan.torch_backend.probe import run

    def refuse() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nUpdate it.")

    monkeypatch.setattr(run.torch.version, "cuda", "13.0")
    monkeypatch.setattr(run.torch.cuda, "init", refuse)
    with pytest.raises(ConfigError, match=r"does not start: The NVIDIA driver .* too old \(found version 11040\)\.;"):
        run.run(Request(spec=LLAMA, job=job_of(), card=card_of("h100")), lambda what, share: None)


def test_the_probe_device_is_the_gpu_or_its_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    local = card_of("h200")
    monkeypatch.setattr(nvml, "local_gpu", lambda number=0: local)
    assert probe.probe_device("auto") == probe.probe_device() == probe.ProbeDevice(local, local_gpu=local)
    stand_in = probe.probe_device("rtx4090")
    assert (stand_in.gpu.name, stand_in.capped, stand_in.local_gpu) == ("rtx4090", True, local)
    with pytest.raises(ConfigError, match=r"^gpu=b200: needs"):
        probe.probe_device("b200")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"device": "tpu"}, "device=tpu: expected cuda, cpu or emulated"),
        ({"device": "cpu"}, "device=cpu needs gpu"),
        ({"steps": 0}, "steps=0: expected 1 to 1000"),
        ({"timeout": 0}, "timeout=0: expected seconds above 0"),
        ({"max_runs": 0}, "max_runs=0: expected 1 or more"),
        ({"history": True}, "history needs record"),
        ({"record": "runs", "steps": 1}, "record needs steps=2 or more"),
    ],
)
def test_limits_of_real_runs(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        probe.probe_device(**settings)


def test_utilization_counts_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Model FLOPs: checkpointing makes a step slower, not its arithmetic larger."""
    job, card = job_of(), card_of("h200")
    seen: list[Request] = []

    def fake_run(request: Request, timeout: float, tell: Any, **_: Any) -> Any:
        seen.append(request)
        from tests.helpers import measured_of

        return measured_of(request.job, step_seconds=(9.0, 0.5, 0.5)), []

    monkeypatch.setattr(subprocess_runner, "run", fake_run)
    device = probe.ProbeDevice(card, local_gpu=card)
    plain, checkpointed = (
        device.measure(LLAMA, job.model_copy(update={"checkpointing": name})).model_flops_utilization
        for name in ("none", "full")
    )
    assert plain == checkpointed
    assert seen[0].cap_bytes is None
