"""The search: exact pairs, ranking, advice."""

from __future__ import annotations

import re
from typing import Any

import pytest

import vramplan
from tests.helpers import card_of, cli, spec_of
from vramplan import Job, Search
from vramplan.errors import ConfigError
from vramplan.memory.estimate import Estimate, PartialEstimate, Term
from vramplan.planner.batch_search import learning_rate, pairs, search
from vramplan.planner.preference import PREFERENCES
from vramplan.planner.search_result import Run
from vramplan.planner.training_run import run_seconds
from vramplan.step_time.step_time import ComputeTime
from vramplan.units import divisors


def suggest(model: str = "Qwen/Qwen2.5-0.5B", gpu: str = "rtx3060", global_batch: int = 16, **more: Any) -> Search:
    return vramplan.suggest(model, gpu, global_batch, **more)


@pytest.mark.parametrize(
    ("target", "cards", "pair"),
    [(32, 1, (32, 1)), (32, 4, (8, 1)), (32, 2, (8, 2)), (32, 1, (8, 4)), (16, 2, (1, 8)), (16, 2, (4, 2))],
)
def test_global_batch_is_cards_times_micro_times_accumulation(target: int, cards: int, pair: tuple[int, int]) -> None:
    assert pair in pairs(target, cards)
    assert all(cards * micro * steps == target for micro, steps in pairs(target, cards))


def test_every_pair_is_listed_once() -> None:
    assert pairs(16, 1) == [(1, 16), (2, 8), (4, 4), (8, 2), (16, 1)]
    assert pairs(7, 7) == [(1, 1)]
    assert divisors(360)[-1] == 360
    assert len(divisors(360)) == 24


@pytest.mark.parametrize(("target", "cards", "said"), [(10, 4, "8 or 12"), (3, 4, ": 4"), (17, 8, "16 or 24")])
def test_targets_that_cannot_be_met_name_the_nearest(target: int, cards: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pairs(target, cards)


def fake(need: int, per_sample: int, seconds: float = 1.0, fixed: float = 0.0) -> Any:
    """An estimator with a straight line for memory and time."""

    def begin(spec: Any, job: Job, card: Any, several: bool = False) -> PartialEstimate:
        return PartialEstimate(0, lambda: estimate(job))

    def estimate(job: Job) -> Estimate:
        total = need + per_sample * job.micro_batch_size
        return Estimate(
            model="m",
            by="analytic",
            card="c",
            micro_batch_size=job.micro_batch_size,
            gradient_accumulation_steps=job.gradient_accumulation_steps,
            peak_tensor_bytes=total,
            peak_allocated_bytes=total,
            peak_reserved_bytes=total,
            device_total_bytes=total,
            capacity_bytes=100,
            margin_bytes=0,
            fits=total <= 100,
            fits_without_margin=total <= 100,
            phases={},
            peak_phase="backward",
            terms=(Term("parameter", "all", total),),
            job=job,
            num_parameters=1,
            num_trainable_parameters=1,
            assumptions=(),
            compute=ComputeTime(fixed + seconds * job.micro_batch_size, 0.0, 0.0),
        )

    return begin


def searched(target: int, estimator: Any, prefer: str = "largest") -> Search:
    return search(spec_of("Qwen/Qwen2.5-0.5B"), Job(), card_of(), target, estimator, prefer=prefer)


@pytest.mark.parametrize(("need", "per_sample"), [(10, 7), (0, 1), (50, 50), (10, 3), (0, 100), (99, 1)])
@pytest.mark.parametrize("target", [1, 7, 64, 120])
def test_the_largest_micro_batch_is_found(need: int, per_sample: int, target: int) -> None:
    found = searched(target, fake(need, per_sample))
    largest = (100 - need) // per_sample
    assert found.max_micro_batch_size == largest
    assert {plan.micro_batch_size for plan in found.plans} == {d for d in divisors(target) if d <= largest}
    assert {one.micro_batch_size for one in found.rejected} == {d for d in divisors(target) if d > largest}


def test_a_larger_micro_batch_wins_while_it_pays() -> None:
    launches_dominate = searched(16, fake(10, 5, seconds=0.01, fixed=1.0))
    assert launches_dominate.recommended is not None
    assert launches_dominate.recommended.micro_batch_size == 16
    assert [plan.micro_batch_size for plan in launches_dominate.plans] == [16, 8, 4, 2, 1]
    full_card = searched(16, fake(10, 5, seconds=1.0, fixed=0.001))
    assert full_card.recommended is not None
    assert full_card.recommended.micro_batch_size == 16
    assert "1 × 16 is as fast and leaves" in full_card.reason


def test_the_preference_decides_which_plan_is_recommended() -> None:
    grows_slower = fake(10, 5, seconds=1.0, fixed=0.05)
    chosen = {prefer: searched(16, grows_slower, prefer=prefer) for prefer in PREFERENCES}
    sizes = {prefer: found.recommended.micro_batch_size for prefer, found in chosen.items() if found.recommended}
    # 16 x 1.0 s and a fixed 0.05 s for each of the micro-steps: 4 x 4 is 0.9 % slower than 16 x 1, 2 x 8 is 2.2 %
    assert sizes == {"largest": 16, "fastest": 4, "headroom": 1}
    assert all(found.recommended is found.plans[0] for found in chosen.values())
    assert "16 × 1 takes 4% less time" in chosen["headroom"].reason
    assert searched(1, fake(10, 5), prefer="headroom").reason == "The only micro-batch that fits with the margin"
    with pytest.raises(ConfigError, match="prefer=most: expected largest, fastest, headroom"):
        suggest(prefer="most")


def test_fewer_negatives_are_no_equal_plan() -> None:
    """Of MultipleNegativesRankingLoss, whose negatives are the other samples of a micro-batch."""
    model, full_card = spec_of("BAAI/bge-m3"), fake(10, 5, seconds=1.0, fixed=0.001)

    def reasons(loss: str) -> dict[str, tuple[int, str]]:
        job = Job(task="embedding", embedding_loss=loss, method="full")
        results = {way: search(model, job, card_of(), 16, full_card, prefer=way) for way in ("largest", "fastest")}
        return {way: (found.plans[0].micro_batch_size, found.reason) for way, found in results.items()}

    assert reasons("multiple_negatives") == {
        "largest": (16, "Largest micro-batch that fits with the margin"),
        "fastest": (16, "Most negatives of the fastest plans, which differ by 2 % at most"),
    }
    of_scores = reasons("cosent")
    assert "1 × 16 is as fast" in of_scores["largest"][1]
    assert of_scores["fastest"] == (1, "Most memory free of the fastest plans, which differ by 2 % at most")


@pytest.mark.parametrize(
    ("job", "target", "named"),
    [
        (Job(task="grpo", prompt_length=64, sequence_length=512), 60, "global_batch=64, or for num_generations a"),
        (Job(task="kto"), 1, "global_batch=2 or more"),
        (Job(task="grpo", prompt_length=64, sequence_length=512, num_gpus=3, strategy="ddp"), 60, "global_batch=72,"),
    ],
)
def test_a_global_batch_that_the_trainer_takes_in_no_split(job: Job, target: int, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        search(spec_of("Qwen/Qwen2.5-0.5B"), job, card_of(), target, fake(10, 5))


def test_nothing_fits() -> None:
    found = searched(4, fake(200, 1))
    assert found.recommended is None
    assert not found.plans
    assert found.max_micro_batch_size == 0
    assert [one.reason for one in found.rejected][:2] == [
        "needs more than the GPU has",
        "larger than 1, which does not fit",
    ]


def test_long_accumulation_draws_a_warning() -> None:
    assert not any("accumulation" in text for text in searched(64, fake(90, 10)).warnings)
    assert "arXiv 2507.07101" in searched(128, fake(90, 10)).warnings[0]


def test_the_learning_rate_follows_the_batch() -> None:
    assert learning_rate(Run(base_lr=1e-4, base_batch=16), 64) == pytest.approx(2e-4)
    assert learning_rate(Run(base_lr=0.1, base_batch=16, adaptive=False), 64) == pytest.approx(0.4)
    assert learning_rate(Run(), 64) is None
    assert suggest(base_lr=1e-4, base_batch=4).learning_rate == pytest.approx(2e-4)
    assert suggest(base_lr=1e-4, base_batch=4, optimizer="sgd").learning_rate == pytest.approx(4e-4)


def test_the_published_run_of_fifty_samples() -> None:
    """50 samples, 10 epochs, per-device 1 x accumulation 16: 500 micro-steps, about 31 updates."""
    found = suggest("Qwen/Qwen2.5-7B-Instruct", "rtx4090d", 16, samples=50, epochs=10, advice=False)
    plan = next(plan for plan in found.plans if plan.micro_batch_size == 1)
    assert plan.run is not None
    assert (plan.run.micro_steps, plan.run.optimizer_updates) == (500, 31)
    assert plan.run.trainer_updates == 40  # transformers 5.23 steps at the end of every epoch as well
    seconds = run_seconds(plan)
    assert seconds is not None
    assert 540 / 1.25 < seconds < 540 * 1.25, "the article's run took nine minutes"


def test_a_real_search() -> None:
    found = suggest(gpu="h100", global_batch=32, method="full", sequence_length=256)
    assert found.recommended in found.plans
    assert all(plan.estimate.fits and plan.global_batch_size == 32 for plan in found.plans)
    assert min(plan.relative_step_time for plan in found.plans) == 1.0
    times = {plan.micro_batch_size: plan.relative_step_time for plan in found.plans}
    assert times[1] > times[max(times)]  # a small model alone does not fill the card
    assert found.max_micro_batch_size >= max(times)
    needs = sorted((plan.micro_batch_size, plan.estimate.peak_allocated_bytes) for plan in found.plans)
    assert needs == sorted(needs, key=lambda pair: pair[1])


def test_the_largest_micro_batch_really_is() -> None:
    found = suggest(gpu="rtx4090", global_batch=16, method="full", checkpointing="none")
    largest = found.max_micro_batch_size
    assert largest > 1
    settings: dict[str, Any] = {"method": "full", "checkpointing": "none", "gradient_accumulation_steps": 2}
    assert vramplan.estimate("Qwen/Qwen2.5-0.5B", "rtx4090", micro_batch_size=largest, **settings).fits
    assert not vramplan.estimate("Qwen/Qwen2.5-0.5B", "rtx4090", micro_batch_size=largest + 1, **settings).fits


def test_advice_where_nothing_fits() -> None:
    found = suggest("meta-llama/Llama-3.1-8B", "rtx4090", 8, method="full")
    assert not found.plans
    by_change = {one.change: one for one in found.advice}
    assert by_change["--method lora"].fits
    assert by_change["--method lora"].saved_bytes > 20e9
    assert by_change["--loss liger"].cost == "free"
    assert any(one.change.startswith("--gpu ") and one.fits for one in found.advice)
    costs = [one.cost for one in found.advice]
    assert costs == sorted(costs, key=lambda cost: (cost != "free", costs.index(cost)))


def test_advice_that_doubles_the_batch_for_nothing() -> None:
    found = suggest("Qwen/Qwen2.5-7B-Instruct", "rtx4090d", 16)
    largest = max(plan.micro_batch_size for plan in found.plans)
    assert [one.change for one in found.advice] == ["--loss liger"]
    assert found.advice[0].fits
    assert found.advice[0].micro_batch_size == 2 * largest


@pytest.mark.parametrize("target", [3, 6, 7, 14])
def test_free_advice_meets_the_target(target: int) -> None:
    for one in suggest("meta-llama/Llama-3.1-8B", "rtx4090", target).advice:
        assert target % one.micro_batch_size == 0


def test_advice_on_an_old_card_is_what_following_it_gives() -> None:
    found = suggest("google/gemma-2-2b", "t4", 32, method="full")
    lora = next(one for one in found.advice if one.change == "--method lora")
    followed = vramplan.estimate("google/gemma-2-2b", "t4", gradient_accumulation_steps=32)
    assert lora.fits
    assert lora.device_total_bytes == followed.device_total_bytes


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ("q_proj", "v_proj"), "q_proj, v_proj"])
def test_targets_however_they_are_given(targets: Any) -> None:
    assert vramplan.estimate("Qwen/Qwen2.5-0.5B", "h100", lora_targets=targets).job.lora_targets == ("q_proj", "v_proj")
    assert vramplan.estimate("Qwen/Qwen2.5-0.5B", "h100", lora_targets="all-linear").job.lora_targets is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"global_batch": "16"}, "global_batch=16"),
        ({"global_batch": 0}, "global_batch=0"),
        ({"samples": -1}, "samples=-1"),
        ({"epochs": 0.0}, "epochs=0"),
        ({"base_lr": 1e-4}, "go together"),
        ({"base_lr": -1.0, "base_batch": 4}, "base_lr=-1"),
        ({"lora_rank": 0}, "lora_rank=0"),
        ({"no_such": 1}, "no such setting"),
        ({"method": "full", "quantize": "int8"}, "cannot train"),
        ({"strategy": "fsdp"}, "more than one GPU"),
        ({"dtype": "int3"}, "dtype='int3'"),
    ],
)
def test_bad_settings(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(vramplan.VramplanError, match=said):
        suggest(**settings)


def test_a_plan_without_accumulation_may_fit_alone() -> None:
    """FSDP keeps whole gradients while it accumulates: 4 samples at once need less than 4 one by one."""
    found = suggest(
        "Qwen/Qwen2.5-7B", "a100-40gb-sxm", 16, method="full", num_gpus=4, strategy="fsdp", sequence_length=512
    )
    assert [(plan.micro_batch_size, plan.gradient_accumulation_steps) for plan in found.plans] == [(4, 1)]
    assert [(one.micro_batch_size, one.gradient_accumulation_steps) for one in found.rejected] == [(1, 4), (2, 2)]
    assert found.max_micro_batch_size >= 4


@pytest.mark.parametrize("columns", ["60", "40"])
def test_a_narrow_terminal_keeps_the_figures(columns: str) -> None:
    wide = cli("suggest", "qwen2.5-7b", "--gpu", "rtx4090", "--global-batch", "16").stdout
    shown = cli("suggest", "qwen2.5-7b", "--gpu", "rtx4090", "--global-batch", "16", COLUMNS=columns).stdout
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= int(columns)
    where = wide[wide.index("  weights ") : wide.index("  need of the GPU ")]
    for line in where.splitlines():
        (name, size) = re.match(r"  (.+?)  +([\d.]+)", line).groups()  # type: ignore[union-attr]
        assert re.search(rf"{re.escape(name)} +{re.escape(size)}\b", shown)
