"""Loading of quantized models.

Bytes are those of PyTorch 2.13's CUDA code on an emulated A100 (`vramplan probe --device emulated --as-card a100-80gb`)
with transformers 5.23.0, PEFT 0.21.2 and bitsandbytes 0.50.2.
"""

from __future__ import annotations

import pytest

import vramplan
from vramplan.memory.allocator import SMALL_BUFFER
from vramplan.memory.replay import replay

CASES = (
    ("qwen2.5-7b", True, (8_832_714_752, 10_173_284_352, 10_435_428_352)),
    ("qwen2.5-0.5b", True, (1_002_737_664, 1_046_478_848, 1_384_120_320)),
    ("qwen2.5-0.5b", False, (475_138_048, 501_219_328, 838_860_800)),
)
"""Model, prepare_for_kbit_training, (allocated peak of loading, its reserved peak, reserved peak of the run)."""


@pytest.mark.parametrize(("model", "prepared", "measured"), CASES)
def test_loading(model: str, prepared: bool, measured: tuple[int, int, int]) -> None:
    job = {"method": "lora", "quantize": "nf4", "sequence_length": 128, "prepare_for_kbit_training": prepared}
    result = vramplan.estimate(model, "a100-80gb", confidence=0.0, **job)
    timeline = result.timeline
    assert timeline is not None
    loading = timeline.events[: timeline.marks[1].first_event]
    run = replay(loading, timeline.kind_of, timeline.kinds.sizes)
    estimated = run.peak_allocated_bytes, run.peak_reserved_bytes, result.peak_reserved_bytes
    assert estimated == pytest.approx(measured, rel=1e-3, abs=SMALL_BUFFER)
