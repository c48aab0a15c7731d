"""An out-of-memory in the middle of a run: smaller micro-batches, the same global batch, nothing lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tests.adaptive_runs import (
    MESSAGE,
    Network,
    close,
    constant,
    growing,
    out_of_memory_above,
    out_of_memory_in_backward,
    rungs,
    samples,
    sizes,
)
from vramplan.adaptive.controller import Controller
from vramplan.adaptive.out_of_memory import is_out_of_memory
from vramplan.adaptive.policies.noise_scale import NoiseScalePolicy
from vramplan.adaptive.step_loader import StepLoader
from vramplan.adaptive.torch_loop import AdaptiveLoop
from vramplan.errors import ConfigError


def loop_of(controller: Controller, count: int = 40, **settings: Any) -> AdaptiveLoop:
    model = Network(dropout=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = StepLoader(samples(count), controller, epochs=2)
    return AdaptiveLoop(controller, model, optimizer, loader, **{"measure_every": 1, **settings})


def run(loop: AdaptiveLoop) -> list[Any]:
    return list(loop.steps(loop.model))


def test_it_goes_on_in_smaller_micro_batches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    smooth = loop_of(growing())
    steps = run(smooth)
    loop = loop_of(growing(), decisions=tmp_path / "decisions.jsonl")
    with out_of_memory_above(loop.model, 2) as failed:
        found = run(loop)
    # the same steps, batches, samples and weights (sums in another order); one failure, at micro-batch 4
    assert failed == [4]
    assert [step.global_batch_size for step in found] == [step.global_batch_size for step in steps]
    assert [step.loss for step in found] == pytest.approx([step.loss for step in steps], rel=1e-4)
    assert close(loop.model, smooth.model)
    assert sorted(loop.model.samples) == sorted([*range(40)] * 2)
    assert max(sizes(loop.model.seen)) == 2
    lines = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["after"]["micro_batch_size"]) for line in lines] == [
        ("grow", 4),
        ("out of memory", 2),
        ("grow", 2),
    ]
    assert lines[1]["before"]["global_batch_size"] == lines[1]["after"]["global_batch_size"] == 8
    assert "ran out of memory" in lines[1]["reason"]
    assert [decision.json_line() for step in found for decision in step.decisions] == [*map(json.dumps, lines)]
    (record,) = caplog.records
    assert record.getMessage() == (
        "after step 3: micro-batch 4 ran out of memory; micro-batch x accumulation 2 x 4 instead of 4 x 2"
    )


def second_call_fails(model: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The model, which runs out of memory when it is called the second time."""
    calls = 0

    def forward(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise torch.OutOfMemoryError(MESSAGE)
        return model(batch)

    return forward


def test_whole_gradients_are_kept() -> None:
    """The second forward of a step fails: the first is not computed again."""
    smooth, loop = (loop_of(constant(), count=4) for _ in range(2))
    run(smooth)
    list(loop.steps(second_call_fails(loop.model)))
    assert sizes(loop.model.seen) == [2, 1, 1, 1, 1, 1, 1]  # the failed call saw nothing
    assert close(loop.model, smooth.model)


@pytest.mark.parametrize("measures", [False, True])
def test_a_gradient_in_pieces_is_computed_again(measures: bool) -> None:
    """Behind the failing layer there are gradients, before it there are none."""

    def controller() -> Controller:
        return Controller(rungs()[1:], NoiseScalePolicy(half_life=10**9, most_spread=1e-9)) if measures else growing()

    smooth, loop = loop_of(controller()), loop_of(controller())
    run(smooth)
    with out_of_memory_in_backward(loop.model.first, 2) as failed:
        run(loop)
    assert failed == [4]
    assert close(loop.model, smooth.model)


def test_norms_of_a_step_that_was_cut_again() -> None:
    """Micro-batches of 4, 2 and 2 have a harmonic mean of 2.4; the step is 8."""
    controller = Controller(rungs()[1:], NoiseScalePolicy(half_life=10**9, most_spread=1e-9))
    loop = loop_of(controller, count=8)
    told: list[Any] = []
    loop.controller.observe = told.append  # type: ignore[method-assign, assignment]
    list(loop.steps(second_call_fails(loop.model)))
    assert (told[0].small_batch, told[0].large_batch) == pytest.approx((2.4, 8))


def test_without_a_smaller_micro_batch_it_ends_in_one_line() -> None:
    loop = loop_of(constant())
    with (
        out_of_memory_above(loop.model, 0),
        pytest.raises(ConfigError, match="out of memory at micro-batch 1, and no smaller one of global batch 4"),
    ):
        run(loop)


def test_other_errors_are_not_caught() -> None:
    loop = loop_of(constant())
    with pytest.raises(RuntimeError, match="shapes"):
        list(loop.steps(lambda batch: (_ for _ in ()).throw(RuntimeError("shapes"))))
    assert is_out_of_memory(torch.OutOfMemoryError(MESSAGE))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"))
    assert not is_out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))
    assert not is_out_of_memory(MemoryError())
