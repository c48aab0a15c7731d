"""Holes: after fragmentation, a micro-batch may fit although a smaller one does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import vramplan
from tests.helpers import card_of, spec_of
from tests.test_plan import fake
from vramplan.inputs.job import Job
from vramplan.memory.estimate import Estimate, PartialEstimate
from vramplan.planner.batch_search import FRAGMENTED, Search, search
from vramplan.planner.monotone_search import NEAR_TOP, largest_batch


def test_the_search_looks_past_holes() -> None:
    for top in (1, 5, NEAR_TOP, NEAR_TOP + 9, 500):
        for size in range(max(1, top - NEAR_TOP + 1), top + 1):
            assert largest_batch(0, top, lambda micro, size=size: micro in (1, size)) == size
    assert largest_batch(0, 500, lambda micro: micro <= 3) == 3
    assert largest_batch(0, 500, lambda micro: False) == 0
    tries: list[int] = []
    largest_batch(1, 1 << 20, lambda micro: bool(tries.append(micro)))
    assert len(tries) < NEAR_TOP + 2 * 20, "the number of replays is bounded"


def searched(
    target: int, holes: set[int], per_sample: int = 1, job: Job = Job(), completed: set[int] | None = None
) -> Search:
    """A search on a GPU of 100 bytes, of which a sample takes so many; the micro-batches in `holes` do not fit.

    `completed` gets those that were estimated in full.
    """
    estimator = fake(0, per_sample)

    def begin(spec: Any, job: Job, card: Any, several: bool = False) -> PartialEstimate:
        partial = estimator(spec, job, card)

        def complete() -> Estimate:
            if completed is not None:
                completed.add(job.micro_batch_size)
            fits = job.micro_batch_size not in holes
            estimate: Estimate = partial.complete()
            return replace(estimate, fits=fits and estimate.fits, fits_without_margin=fits and estimate.fits)

        return replace(partial, lower_bound_bytes=per_sample * job.micro_batch_size, complete=complete)

    gpu = card_of().model_copy(update={"cuda_total_bytes": 100, "margin_bytes": 0})
    return search(spec_of("Qwen/Qwen2.5-0.5B"), job, gpu, target, begin)


@pytest.mark.parametrize(
    "holes", [set(), {1}, {2}, {1, 2}, {4}, {2, 8}, {1, 2, 4}, {1, 2, 4, 8}, {3, 5, 6, 7, 9}, {12}]
)
@pytest.mark.parametrize("target", [1, 2, 16, 24])
def test_each_pair_is_tried_by_itself(holes: set[int], target: int) -> None:
    found = searched(target, holes, 8)  # 12 samples take 96 bytes
    fitting = {micro for micro in range(1, 13) if micro not in holes}
    every = {micro for micro in range(1, target + 1) if target % micro == 0}
    assert {plan.micro_batch_size for plan in found.plans} == every & fitting
    assert all(plan.estimate.fits for plan in found.plans)
    assert {one.micro_batch_size for one in found.rejected} == every - fitting
    assert found.max_micro_batch_size == max(fitting)


def test_micro_batches_that_the_trainer_refuses_are_not_estimated() -> None:
    """GRPO of 8 completions for a prompt: multiples of 8 alone, and one that fits itself, not a larger one between."""
    completed: set[int] = set()
    found = searched(8, {24}, 4, Job(task="grpo", num_generations=8), completed)  # 25 samples take 100 bytes
    assert found.max_micro_batch_size == 16
    assert {micro for micro in completed if micro > 8} == {16, 24}


def test_a_hole_has_a_reason_of_its_own() -> None:
    found = searched(32, {2, 8}, 8)
    assert [(one.micro_batch_size, one.reason) for one in found.rejected][:2] == [(2, FRAGMENTED), (8, FRAGMENTED)]
    assert [one.reason for one in found.rejected[2:]] == ["larger than 8, which does not fit"] * 2


def test_one_sample_may_not_fit_although_two_do() -> None:
    job: dict[str, Any] = {"method": "full", "sequence_length": 8192}
    table = vramplan.table(["qwen2.5-vl-32b-instruct"], ["b300"], methods=["full"], seq_lens=[8192])
    ((cell,),) = (row.cells for row in table.rows.values())
    found = vramplan.suggest("qwen2.5-vl-32b-instruct", "b300", 2, advice=False, **job)
    assert cell.value == found.max_micro_batch_size == 2
    assert [plan.micro_batch_size for plan in found.plans] == [2]
