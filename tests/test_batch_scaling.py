"""A step scaled in the micro-batch is the step that is simulated, storage by storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vramplan.analytic import estimator
from vramplan.analytic.batch_scaling import BatchScaling
from vramplan.inputs.catalog import find_gpu, find_model
from vramplan.inputs.gpu import Gpu
from vramplan.memory.batch_scaling import ScaledTimeline
from vramplan.memory.estimate import PartialEstimate
from vramplan.planner.job_defaults import complete_job

SIMULATED = (2, 3, 6, 11, 64, 65, 66)
"""At 512 tokens tensors outgrow the allocator's small pool one after another, and with it what a step leaves out."""


def scaled(
    model: str, gpu_name: str, settings: dict[str, Any]
) -> tuple[BatchScaling, Gpu, Callable[[int], PartialEstimate]]:
    """A step scaled in the micro-batch, the GPU, and the simulation of the same step."""
    spec, gpu = find_model(model), find_gpu(gpu_name)
    assert spec is not None
    job = complete_job(spec, gpu, settings)
    step_spec, plan, _ = estimator.prepare(spec, job, gpu)
    scaling = BatchScaling(step_spec, plan)
    return scaling, gpu, lambda micro: estimator.begin(spec, job.model_copy(update={"micro_batch_size": micro}), gpu)


@pytest.mark.parametrize(
    ("model", "gpu_name", "settings"),
    [
        ("qwen2.5-0.5b", "rtx4090", {"method": "lora", "sequence_length": 512}),
        ("gemma-2-2b", "t4", {"method": "full", "sequence_length": 777, "checkpointing": "none"}),
        ("qwen3-30b-a3b", "h200-sxm", {"method": "qlora", "sequence_length": 512, "gradient_accumulation_steps": 4}),
        ("smolvlm-256m-instruct", "rtx4090", {"method": "dora", "sequence_length": 2048}),
        ("qwen2.5-0.5b", "rtx4090", {"method": "full", "num_gpus": 2, "strategy": "fsdp"}),
        ("t5-small", "rtx4090", {"method": "full", "sequence_length": 512}),
    ],
)
def test_a_scaled_timeline_is_the_simulated_one(model: str, gpu_name: str, settings: dict[str, Any]) -> None:
    scaling, gpu, begin = scaled(model, gpu_name, settings)
    for micro in SIMULATED:
        assert scaling.covers(micro)
        simulated, timeline = begin(micro).timeline, scaling.timeline(micro, gpu)
        assert simulated is not None
        unscaled = ScaledTimeline(simulated, micro)
        assert timeline.events == unscaled.events
        assert timeline.streams == unscaled.streams
        assert timeline.sizes(micro) == unscaled.sizes(micro) == simulated.sizes()
        assert timeline.peak(micro) == max(simulated.live_bytes(with_kernels=False))
    assert len(scaling.timelines) < len(SIMULATED)


def test_sizes_are_not_linear_if_rows_of_all_samples_are_padded_together() -> None:
    scaling, *_ = scaled("qwen2-vl-2b-instruct", "t4", {"method": "lora", "sequence_length": 2048})
    assert not scaling.covers(2)
    assert not scaling.is_linear
