"""From an estimate to a proof: stepping up and down between the estimate and reality, in few runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import card_of, measured_of, spec_of
from tests.test_plan import fake
from vramplan.errors import ConfigError
from vramplan.inputs.job import Job
from vramplan.measurements import verify
from vramplan.memory.measurement import Measured
from vramplan.planner.batch_search import search
from vramplan.planner.search_result import Search


@given(true=st.integers(0, 300), start=st.integers(1, 300))
def test_the_largest_is_found_from_anywhere(true: int, start: int) -> None:
    tried: list[int] = []

    def fits(number: int) -> bool:
        tried.append(number)
        return number <= true

    assert verify.largest(start, fits, 30) == (true, True)
    assert len(tried) == len(set(tried))
    assert len(tried) <= 2 + 2 * max(1, abs(true - start)).bit_length()


@given(true=st.integers(0, 50), start=st.integers(1, 50), highest=st.integers(1, 50), most=st.integers(1, 6))
def test_runs_are_bounded_and_what_is_said_is_true(true: int, start: int, highest: int, most: int) -> None:
    tried: dict[int, bool] = {}

    def fits(number: int) -> bool:
        assert 1 <= number <= highest
        tried[number] = number <= true
        return tried[number]

    found, settled = verify.largest(start, fits, most, highest)
    assert len(tried) <= most
    assert found == max((number for number, ran in tried.items() if ran), default=0)
    if settled:
        assert found == min(true, highest)


@pytest.mark.parametrize(("start", "runs"), [(7, 2), (8, 2), (6, 4)])
def test_a_good_estimate_takes_two_runs(start: int, runs: int) -> None:
    tried: list[int] = []
    verify.largest(start, lambda n: tried.append(n) or n <= 7, 10)  # type: ignore[func-returns-value]
    assert len(tried) == runs


# -- plans -------------------------------------------------------------------------------------------------------------


class Reality:
    """A card on which micro-batches up to `true` run, taking `ratio` times what the estimate says."""

    def __init__(self, need: int, per_sample: int, true: int, ratio: float = 1.0, fixed: float = 1.0) -> None:
        self.begin = fake(need, per_sample, fixed=fixed, seconds=0.0 if fixed else 1.0)
        self.true, self.ratio = true, ratio
        self.ran: list[int] = []

    def search(self, global_batch: int = 16) -> Search:
        return search(spec_of("qwen2.5-0.5b"), Job(), card_of("h100"), global_batch, self.begin)

    def predict(self, job: Job) -> Any:
        return self.begin(None, job, None).complete()

    def measure(self, job: Job) -> Measured:
        self.ran.append(job.micro_batch_size)
        ok = job.micro_batch_size <= self.true
        size = int(self.predict(job).peak_allocated_bytes * self.ratio)
        return measured_of(job, outcome="ok" if ok else "oom", peak_allocated_bytes=size if ok else None)

    def verified(self, global_batch: int = 16, most: int = 8) -> verify.VerifiedPlan:
        return verify.verify(self.search(global_batch), self.measure, self.predict, most)


def test_a_plan_that_runs_is_kept() -> None:
    reality = Reality(0, 10, true=8)  # the estimate says 8 too, 16 needs 160 of 100
    found = reality.verified()
    assert found.plan is found.search.recommended
    assert reality.ran == [8]
    assert found.settled
    assert found.proof is found.runs[0]


def test_down_after_out_of_memory() -> None:
    reality = Reality(0, 10, true=3)
    found = reality.verified()
    assert found.plan is not None
    assert (found.plan.micro_batch_size, found.plan.gradient_accumulation_steps) == (2, 8)
    assert reality.ran == [8, 4, 2]
    assert found.plan.global_batch_size == 16


def test_up_where_measured_leaves_room() -> None:
    """The estimate is twice too high: 16 is rejected by it, and fits by what was measured."""
    reality = Reality(0, 10, true=16, ratio=0.5)
    found = reality.verified()
    assert found.plan is not None
    assert (found.plan.micro_batch_size, found.plan.gradient_accumulation_steps) == (16, 1)
    assert reality.ran == [8, 16]


def test_up_stops_at_out_of_memory() -> None:
    reality = Reality(0, 10, true=8, ratio=0.5)
    found = reality.verified()
    assert found.plan is not None
    assert found.plan.micro_batch_size == 8
    assert reality.ran == [8, 16]


def test_a_smaller_plan_that_was_chosen_stays() -> None:
    """All pairs are equally fast and fit, so the one with most memory free is recommended: nothing to step up to."""
    reality = Reality(0, 1, true=16, fixed=0.0)
    found = reality.verified()
    assert found.plan is found.search.recommended
    assert len(reality.ran) == 1


def test_nothing_runs() -> None:
    found = Reality(0, 10, true=0).verified()
    assert found.plan is None
    assert found.proof is None


def test_runs_of_a_proof_are_bounded() -> None:
    reality = Reality(0, 10, true=1)
    found = reality.verified(most=2)
    assert len(reality.ran) == 2
    assert not found.settled


def test_no_plan_is_nothing_to_prove() -> None:
    with pytest.raises(ConfigError, match="nothing comes near to fitting"):
        Reality(1000, 10, true=1).verified()


def test_find_max_keeps_every_run() -> None:
    reality = Reality(0, 10, true=11)
    found = verify.find_max(Job(), 9, reality.measure, reality.predict, 8)
    assert (found.micro_batch_size, found.exact) == (11, True)
    assert [one.job.micro_batch_size for one in found.runs] == reality.ran
    assert reality.ran == [9, 10, 12, 11]
