"""8-bit states of bitsandbytes: those of embeddings have 32 bits under transformers' Trainer, not in a plain loop.

Bytes are those of PyTorch 2.13's CUDA code on an emulated A100 (`vramplan probe --device emulated --as-card a100-80gb`)
with transformers 5.23.0 and bitsandbytes 0.50.2.
"""

from __future__ import annotations

import pytest

import vramplan
from vramplan.inputs.job_values import Loop


@pytest.mark.parametrize(("loop", "measured"), [("trainer", 4_374_858_752), ("plain", 3_560_402_944)])
def test_states_of_embeddings(loop: Loop, measured: int) -> None:
    job = {"method": "full", "optimizer": "adamw_8bit", "sequence_length": 128, "loop": loop}
    result = vramplan.estimate("qwen2.5-0.5b", "a100-80gb", **job)
    assert result.peak_allocated_bytes == pytest.approx(measured, rel=1e-4)
