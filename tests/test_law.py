"""A step by its law is the step that is played, storage by storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vramplan.analytic import estimator
from vramplan.analytic.batch_scaling import BatchScaling, ScaledStep
from vramplan.inputs.catalog import find_gpu, find_model
from vramplan.inputs.gpu import Gpu
from vramplan.memory.estimate import PartialEstimate
from vramplan.planner.job_defaults import complete_job

PLAYED = (2, 3, 6, 11, 64, 65, 66)
"""At 512 tokens tensors outgrow the allocator's small pool one after another, and with it what a step leaves out."""


def lawful(model: str, card: str, job: dict[str, Any]) -> tuple[BatchScaling, Gpu, Callable[[int], PartialEstimate]]:
    """A law, the card, and what plays the same."""
    spec, on = find_model(model), find_gpu(card)
    assert spec is not None
    full = complete_job(spec, on, job)
    setting, plan, _ = estimator.prepare(spec, full, on)
    law = BatchScaling(setting, plan)
    return law, on, lambda micro: estimator.begin(spec, full.model_copy(update={"micro_batch_size": micro}), on)


@pytest.mark.parametrize(
    ("model", "card", "job"),
    [
        ("qwen2.5-0.5b", "rtx4090", {"method": "lora", "sequence_length": 512}),
        ("gemma-2-2b", "t4", {"method": "full", "sequence_length": 777, "checkpointing": "none"}),
        ("qwen3-30b-a3b", "h200-sxm", {"method": "qlora", "sequence_length": 512, "gradient_accumulation_steps": 4}),
        ("smolvlm-256m-instruct", "rtx4090", {"method": "dora", "sequence_length": 2048}),
        ("qwen2.5-0.5b", "rtx4090", {"method": "full", "num_gpus": 2, "strategy": "fsdp"}),
        ("t5-small", "rtx4090", {"method": "full", "sequence_length": 512}),
    ],
)
def test_a_law_gives_what_is_played(model: str, card: str, job: dict[str, Any]) -> None:
    law, on, begin = lawful(model, card, job)
    for micro in PLAYED:
        assert law.holds(micro)
        begun, course = begin(micro), law.course(micro, on)
        assert begun.timeline is not None
        played = ScaledStep(begun.timeline, micro)
        assert course.events == played.events
        assert course.streams == played.streams
        assert course.sizes(micro) == played.sizes(micro) == begun.timeline.sizes()
        assert course.peak(micro) == max(begun.timeline.live_bytes(with_kernels=False))
    assert len(law.courses) < len(PLAYED)


def test_where_rows_of_all_samples_are_padded_there_is_no_law() -> None:
    law, *_ = lawful("qwen2-vl-2b-instruct", "t4", {"method": "lora", "sequence_length": 2048})
    assert not law.holds(2)
    assert law.broken
