"""Changes that are enough together only."""

from __future__ import annotations

from typing import Any

import pytest

import vramplan
from vramplan.planner.levers import COSTS, cheapest_first, cost_rank
from vramplan.planner.search_result import FREE


@pytest.mark.parametrize(
    ("model", "gpu", "settings", "change"),
    [
        ("qwen2.5-7b", "rtx3060", {"sequence_length": 8192}, "--loss liger --quantize nf4"),
        ("qwen2.5-7b", "rtx4090", {"sequence_length": 4096, "attention": "eager"}, "--loss liger --attention sdpa"),
    ],
)
def test_a_combination_is_what_the_job_with_it_needs(
    model: str, gpu: str, settings: dict[str, Any], change: str
) -> None:
    search = vramplan.suggest(model, gpu, 16, **settings)
    assert search.recommended is None
    (together,) = [effect for effect in search.advice if effect.change == change]
    assert together.fits
    cheaper = [effect for effect in search.advice if cost_rank(effect.cost) < cost_rank(together.cost)]
    assert not any(effect.fits for effect in cheaper)
    fields = {name: value for name, value in together.update.items() if name not in ("dtype", "autocast")}
    again = vramplan.suggest(model, gpu, 16, **{**settings, **fields}, advice=False)
    needs = {plan.micro_batch_size: plan.estimate.device_total_bytes for plan in again.plans}
    assert needs[together.micro_batch_size] == together.device_total_bytes


def test_no_combination_where_a_free_change_is_enough() -> None:
    search = vramplan.suggest("qwen2.5-7b", "rtx4090", 16, sequence_length=4096, lora_rank=16)
    assert search.recommended is None
    assert any(effect.fits and effect.cost == FREE for effect in search.advice)
    assert not any(" --" in effect.change for effect in search.advice)


def test_another_strategy_is_tried_at_the_micro_batch_that_suits_it() -> None:
    """DDP needs least without accumulation, ZeRO-3 with micro-batch 1."""
    settings = {"num_gpus": 4, "method": "full"}
    search = vramplan.suggest("qwen2.5-14b", "a100-80gb", 16, **settings)
    (zero3,) = [effect for effect in search.advice if effect.change == "--strategy zero3"]
    assert (search.smallest.micro_batch_size, zero3.micro_batch_size, zero3.fits) == (4, 1, True)


def test_changes_are_in_the_order_of_their_costs() -> None:
    advice = vramplan.suggest("qwen2.5-7b", "rtx3060", 16, method="full").advice
    assert list(advice) == cheapest_first(advice)
    assert [cost_rank(cost) for cost in COSTS] == sorted(cost_rank(cost) for cost in COSTS)
    assert cost_rank("context") == len(COSTS)
