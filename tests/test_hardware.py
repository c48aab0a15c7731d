"""Hardware as an answer: the fewest, fastest and cheapest GPUs that hold a job, and the plans that no other beats."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import answered_once, cli
from vramplan import Hardware, HardwarePlan
from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.inputs.catalog import all_gpus, find_gpu
from vramplan.inputs.links import with_links
from vramplan.inputs.prices import Price, Prices
from vramplan.planner import hardware_search, hardware_sweep
from vramplan.planner.hardware_candidates import (
    STRATEGIES,
    gpu_counts,
    is_guess,
    named_gpus,
    sharings,
    without_surpassed,
)
from vramplan.planner.resources import LAUNCHERS, Limit, resources

SMALL = "Qwen/Qwen2.5-0.5B"
PRICES = Prices(
    "USD",
    {name: (Price(per_hour),) for name, per_hour in {"rtx3060-12gb": 0.1, "rtx4090": 0.7, "l40s": 1.0}.items()},
)


def search(gpu: Any = "rtx4090", global_batch: int = 8, model: str = SMALL, **more: Any) -> Hardware:
    return vramplan.suggest_hardware(model, gpu, global_batch, **{"prices": PRICES, **more})


def told(plan: HardwarePlan | None) -> tuple[Any, ...]:
    assert plan is not None
    return plan.gpu.name, plan.num_gpus, plan.sharing.strategy, plan.sharing.offload


# -- against every candidate -------------------------------------------------------------------------------------------


def every_plan(model: str, gpus: list[str], counts: list[int], global_batch: int, **job: Any) -> dict[Any, float]:
    """Seconds of a step by (GPU, number, strategy), asked one by one."""
    seconds = {}
    for gpu, count, strategy in product(gpus, counts, STRATEGIES):
        if count == 1 and strategy != "ddp":
            continue
        found = vramplan.suggest(model, gpu, global_batch, num_gpus=count, strategy=strategy, advice=False, **job)
        if found.recommended is not None:
            assert found.recommended.estimate.step_time is not None
            seconds[find_gpu(gpu).name, count, strategy] = found.recommended.estimate.step_time.seconds
    return seconds


@pytest.mark.parametrize(("model", "method"), [(SMALL, "full"), ("Qwen/Qwen2.5-7B", "full")])
def test_the_answer_is_that_of_asking_one_by_one(model: str, method: str) -> None:
    gpus, counts = ["rtx4090", "l40s", "h100"], [1, 2, 4]
    seconds = every_plan(model, gpus, counts, 4, method=method)
    found = search(gpus, 4, model, method=method)
    assert {(one.gpu.name, one.num_gpus) for one in found.plans} == {(gpu, count) for gpu, count, _ in seconds}
    for one in found.plans:
        alternatives = [time for (gpu, count, _), time in seconds.items() if (gpu, count) == told(one)[:2]]
        assert one.step_seconds is not None
        assert one.step_seconds == seconds[told(one)[:3]]
        assert one.step_seconds <= 1.02 * min(alternatives)
    assert found.fewest is not None
    assert found.fewest.num_gpus == min(count for _, count, _ in seconds)


def beats(one: HardwarePlan, other: HardwarePlan) -> bool:
    mine = (one.num_gpus, one.step_seconds, one.price_per_step)
    its = (other.num_gpus, other.step_seconds, other.price_per_step)
    assert None not in (*mine, *its)
    return mine != its and all(a <= b for a, b in zip(mine, its, strict=True))  # type: ignore[operator]


@pytest.mark.full
def test_no_plan_of_the_front_is_beaten_and_all_others_are() -> None:
    found = search("rtx4090,l40s,rtx3060", 8, "Qwen/Qwen2.5-7B")
    for one in found.front:
        assert not any(beats(other, one) for other in found.plans)
    for one in set(map(id, found.plans)) - set(map(id, found.front)):
        beaten = next(plan for plan in found.plans if id(plan) == one)
        assert any(beats(other, beaten) for other in found.front)
    picks = (found.fewest, found.fastest, found.cheapest)
    assert all(any(pick is plan for plan in found.front) for pick in picks)
    assert found.fastest is not None
    assert found.cheapest is not None
    assert found.fastest.step_seconds == min(plan.step_seconds or 0 for plan in found.plans)
    assert found.cheapest.price_per_step == min(plan.price_per_step or 0 for plan in found.plans)
    assert all(plan.estimate.fits for plan in found.plans)
    assert all(plan.plan.global_batch_size == 8 for plan in found.plans)


def test_a_plan_without_a_price_is_compared_on_the_rest() -> None:
    found = search("rtx4090,l40s,rtx3090,h100", 2, max_gpus=1)
    by_gpu = {plan.gpu.name: plan for plan in found.front}
    assert by_gpu["h100-sxm"].price_per_hour is None, "no price, and the fastest"
    assert "rtx3090" not in by_gpu, "no price, and slower than an RTX 4090"
    assert {"rtx4090", "l40s"} & by_gpu.keys(), "what has a price is not beaten by what has none"
    assert found.cheapest is not None
    assert found.cheapest.price_per_step is not None


def test_a_plan_without_a_time_is_listed_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HardwarePlan, "step_seconds", property(lambda _: None))
    found = search("rtx4090,l40s", 2)
    assert told(found.fewest)[:2] == ("rtx4090", 1)
    assert found.fastest is None
    assert found.cheapest is None
    assert [told(one)[:2] for one in found.front] == [("rtx4090", 1)], "of the lowest price per hour"


@pytest.mark.full
def test_gpus_that_others_surpass_change_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = ["rtx3060", "rtx3090", "rtx4090", "rtx4080", "l40s", "a40", "t4", "rtx3060-laptop"]
    whole = search(gpus, 4)
    monkeypatch.setattr(hardware_search, "MANY", 2)
    monkeypatch.setattr(hardware_sweep, "MANY", 2)
    few = search(gpus, 4)
    assert [told(one) for one in few.front] == [told(one) for one in whole.front]
    assert few.plans != whole.plans


# -- what is searched --------------------------------------------------------------------------------------------------


def test_counts_divide_the_global_batch() -> None:
    assert gpu_counts(48, 8, None) == [1, 2, 3, 4, 6, 8]
    assert gpu_counts(48, 8, None, few=True) == [1, 2, 4, 8]
    assert gpu_counts(48, 24, None) == [1, 2, 3, 4, 6, 8, 16, 24], "beyond one machine, machines of 8"
    assert gpu_counts(7, 8, None) == [1, 7]
    assert gpu_counts(64, 8, 4) == [4]
    with pytest.raises(ConfigError, match=r"not a multiple of 4 GPUs.*batches that are: 4 or 8.*divide 6: 3 or 6"):
        gpu_counts(6, 8, 4)


@pytest.mark.full
def test_what_the_user_fixes_is_not_searched() -> None:
    assert {way.strategy for way in sharings([1, 2], {"strategy": "fsdp"})} == {"fsdp"}
    assert {way.offload for way in sharings([1, 2], {"offload": "optimizer"})} == {"optimizer"}
    found = search(num_gpus=2, strategy="zero3")
    assert [told(one) for one in found.plans] == [("rtx4090", 2, "zero3", "none")]
    assert search(quantize="nf4").alternative is None
    spread = search(global_batch=3, strategy="device_map", method="qlora", model="Qwen/Qwen2.5-14B")
    assert told(spread.fewest)[:3] == ("rtx4090", 2, "device_map"), "one process: its batch need not divide"


def test_a_laptop_has_one_gpu() -> None:
    assert {one.num_gpus for one in search("rtx4090-laptop").plans} == {1}
    assert search("rtx4090-laptop,rtx4090", num_gpus=2).refused.keys() == {"rtx4090-laptop"}
    with pytest.raises(ConfigError, match="num_gpus=2: a machine has one RTX 4090"):
        search("rtx4090-laptop,rtx3060-laptop", num_gpus=2)


def test_any_is_the_whole_catalogue_and_guesses_are_marked() -> None:
    gpus = named_gpus("any")
    assert {gpu.name for gpu in gpus} == {gpu.name for gpu in all_gpus()}
    vendors = [gpu.vendor == "NVIDIA" for gpu in gpus]
    assert vendors == sorted(vendors, reverse=True), "NVIDIA first"
    assert is_guess(find_gpu("b100"))
    assert is_guess(find_gpu("mi300x"))
    assert not is_guess(find_gpu("rtx4090"))
    kept = {gpu.name for gpu in without_surpassed(gpus, PRICES)}
    assert {"rtx4090", "l40s", "rtx3060-12gb"} <= kept, "no other is as cheap"
    assert "gtx1650" not in kept
    assert len(kept) < 30


def test_the_whole_catalogue_is_searched() -> None:
    found = search("any", 2, max_gpus=2)
    assert {"rtx4090", "rtx3060-12gb"} <= {one.gpu.name for one in found.plans}
    assert found.fewest is not None
    assert not is_guess(found.fewest.gpu)


def test_every_named_gpu_is_loaded_once() -> None:
    assert [gpu.name for gpu in named_gpus("rtx4090, RTX 4090,l40s")] == ["rtx4090", "l40s"]
    for wrong in ("", ",", "any,rtx4090", "rtx409"):
        with pytest.raises(VramplanError):
            named_gpus(wrong)


def test_a_gpu_that_cannot_run_the_job_is_named() -> None:
    found = search("t4,rtx4090", 2, dtype="bf16")
    assert found.refused.keys() == {"t4"}
    assert "bf16" in found.refused["t4"]
    with pytest.raises(ConfigError, match="bf16"):
        search("t4", 2, dtype="bf16")


# -- prices, runs ------------------------------------------------------------------------------------------------------


def test_a_limit_of_the_price() -> None:
    found = search("rtx4090,l40s,h100", 8, max_price=2.5)
    assert {(one.gpu.name, one.num_gpus) for one in found.plans} == {
        ("rtx4090", 1),
        ("rtx4090", 2),
        ("l40s", 1),
        ("l40s", 2),
    }
    assert all((one.price_per_hour or 9) <= 2.5 for one in found.plans)
    assert found.without_price == ("h100-sxm",)


def test_a_limit_that_no_plan_meets_names_the_lowest_price() -> None:
    found = search("rtx4090,l40s", 8, max_price=0.5)
    assert found.plans == ()
    assert found.shortfall is not None
    assert told(found.shortfall.cheapest)[:2] == ("rtx4090", 1)
    assert found.shortfall.larger is None


@pytest.mark.full
def test_plans_that_fit_at_no_known_price_are_not_said_to_be_too_large() -> None:
    found = search("h100", 8, max_price=5)
    assert found.plans == ()
    assert found.without_price == ("h100-sxm",)
    assert found.shortfall is not None
    assert told(found.shortfall.cheapest)[:2] == ("h100-sxm", 1)
    assert found.shortfall.cheapest is not None
    assert found.shortfall.cheapest.price_per_hour is None
    asked = ("--gpu", "rtx4080", "--num-gpus", "auto", "--max-price", "5", "--global-batch", "2")
    text = " ".join(cli("suggest", "qwen2.5-0.5b", *asked).stdout.split())
    assert "Fits, but no plan is known to be within the price of $5.00/h" in text
    assert "DOES NOT FIT" not in text


def test_machines_cost_what_one_of_them_does() -> None:
    prices = Prices("USD", {"rtx4090": (Price(0.7, most=8),)})
    two = search(global_batch=16, max_gpus=16, num_gpus=16, prices=prices).plans
    assert [plan.price_per_hour for plan in two] == [pytest.approx(16 * 0.7)]
    one = search(global_batch=16, num_gpus=16, num_nodes=1, prices=prices).plans
    assert [plan.price_per_hour for plan in one] == [None], "no machine of 16 has a known price"
    with pytest.raises(ConfigError, match="num_nodes=0"):
        search(num_nodes=0)


def test_a_larger_gpu_keeps_to_the_links_and_the_price() -> None:
    asked = {"model": "Qwen/Qwen2.5-14B", "method": "full", "num_gpus": 16, "offload": "none"}
    gpu = with_links(find_gpu("rtx3060-12gb"), network_gbits=100)
    prices = Prices("USD", {"rtx3060-12gb": (Price(0.1),), "rtx4090": (Price(0.7),), "l40s": (Price(1.0),)})
    larger = search(gpu, 16, prices=prices, **asked).shortfall.larger  # type: ignore[union-attr]
    assert larger is not None
    assert larger.gpu.links == gpu.links
    assert larger.step_seconds is not None
    dear = search(gpu, 16, prices=prices, max_price=15.0, **asked).shortfall
    assert dear is not None
    assert dear.larger is None or (dear.larger.price_per_hour or 99) <= 15
    bridged = with_links(find_gpu("rtx3090"), "nvlink", 100)
    short = search(bridged, 16, **{**asked, "model": "Qwen/Qwen2.5-32B"}).shortfall
    assert short is not None
    assert short.larger is not None
    assert short.larger.gpu.links.link == ("nvlink" if short.larger.gpu.nvlink_bytes_per_second else None)


@pytest.mark.full
def test_time_and_price_of_the_run() -> None:
    one = search(samples=1000, epochs=2).fewest
    assert one is not None
    assert one.steps == 250
    assert one.step_seconds is not None
    assert one.run_seconds == pytest.approx(250 * one.step_seconds)
    assert one.run_price == pytest.approx(0.7 * one.run_seconds / 3600)
    assert one.warmup_steps is None
    warm = search(samples=1000, epochs=2, warmup_ratio=0.03).fewest
    assert warm is not None
    assert warm.warmup_steps == 8, "0.03 x 250, rounded up"
    with pytest.raises(ConfigError, match="warmup_ratio needs the length of the run"):
        search(warmup_ratio=0.03)
    by_tokens = search(tokens_total=1_000_000, sequence_length=1024).fewest
    assert by_tokens is not None
    assert by_tokens.steps == 123, "1,000,000 / (8 x 1,024), rounded up"
    assert search().fewest.run_price is None  # type: ignore[union-attr]


# -- what does not fit -------------------------------------------------------------------------------------------------


def test_offloading_is_the_last_resort_and_named() -> None:
    found = search("rtx4090", 4, "Qwen/Qwen2.5-14B", method="full", max_gpus=4)
    assert {one.sharing.offload for one in found.plans} <= {"optimizer", "all"}
    assert found.plans
    for one in found.plans:
        assert one.host_bytes is not None
        assert one.host_bytes >= 6 * one.estimate.num_trainable_parameters, "weights and two states in bf16"
    assert found.shortfall is not None
    assert found.shortfall.larger is not None
    assert found.shortfall.larger.sharing.offload == "none"
    assert found.shortfall.larger.estimate.fits


def test_a_job_that_fits_nowhere_says_what_it_needs_and_where_it_would_fit() -> None:
    found = search("rtx4090", 4, "Qwen/Qwen2.5-14B", method="full", max_gpus=4, offload="none")
    assert found.plans == ()
    short = found.shortfall
    assert short is not None
    assert short.sharing.num_gpus == 4
    assert short.estimate.device_total_bytes > short.gpu.usable_bytes
    assert told(short.larger)[1] == 4
    assert short.larger is not None
    assert short.larger.estimate.fits


@pytest.mark.full
def test_more_gpus_are_named_if_they_were_tried() -> None:
    asked = {"model": "Qwen/Qwen2.5-72B", "method": "full", "offload": "none", "max_gpus": 1}
    short = search("b200", 16, **asked).shortfall
    assert short is not None
    assert short.larger is None
    assert short.more is not None
    assert short.more.num_gpus in (2, 4, 8, 16)
    assert short.more.estimate.fits
    by_hand = search("b200", 16, **{**asked, "max_gpus": short.more.num_gpus})
    assert told(by_hand.fewest) == told(short.more)
    never = search("b200", 1, **asked).shortfall
    assert never is not None
    assert never.more is None


def test_sizes_of_thousands_have_separators_and_no_digit_behind_the_point() -> None:
    asked = ("--method", "full", "--global-batch", "2", "--num-gpus", "auto", "--max-gpus", "2", "--offload", "none")
    text = cli("suggest", "llama-3.1-405b", "--gpu", "rtx4090", *asked).stdout
    assert re.search(r"Least need: \d,\d{3} of 23\.5 GiB", text)


def test_a_batch_that_keeps_gpus_idle_names_the_nearest() -> None:
    short = search("rtx4090", 3, "Qwen/Qwen2.5-32B", method="full", offload="none").shortfall
    assert short is not None
    assert short.sharing.num_gpus == 3
    assert short.usable_batch == 8


@pytest.mark.full
def test_four_bits_on_one_gpu_is_an_alternative() -> None:
    found = search("rtx4090", 8, "Qwen/Qwen2.5-14B")
    assert found.fewest is not None
    assert found.fewest.num_gpus > 1
    assert told(found.alternative)[:2] == ("rtx4090", 1)
    assert found.alternative is not None
    assert found.alternative.estimate.job.quantize == "nf4"
    assert search("rtx4090", 8, "Qwen/Qwen2.5-14B", method="lora").alternative is None
    assert search("rtx4090", 8).alternative is None, "LoRA fits on one"


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"max_gpus": 0}, "max_gpus=0"),
        ({"num_gpus": 0}, "num_gpus=0"),
        ({"max_price": -1}, "max_price=-1"),
        ({"max_price": float("nan")}, "max_price=nan"),
        ({"tokens_total": 0}, "tokens_total=0"),
        ({"tokens_total": 5, "samples": 5}, "both give the length"),
        ({"samples": 5, "epochs": 0}, "epochs=0"),
        ({"lora_rank": 0}, "lora_rank"),
        ({"no_such": 1}, "no such setting"),
    ],
)
def test_bad_values_are_refused_by_name(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        search(**more)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--num-gpus auto --probe", "--probe is about one plan"),
        ("--num-gpus auto --solve seq-len", "--solve is about one plan"),
        ("--num-gpus auto --base-lr 1e-4 --base-batch 8", "--base-lr is about one plan"),
        ("--max-price 5", "--max-price is about a choice of hardware: add --num-gpus auto"),
        ("--max-gpus 4", "--max-gpus is about a choice"),
        ("--num-gpus many", "--num-gpus many: expected a whole number, or auto"),
        ("--num-gpus auto --for no-such", "no-such"),
        ("--num-gpus auto --max-gpus 0", "--max-gpus 0: expected a whole number"),
    ],
)
def test_flags_that_do_not_go_together_are_one_line(flags: str, said: str) -> None:
    done = cli("suggest", "qwen2.5-0.5b", "--gpu", "rtx4090", "--global-batch", "8", *flags.split())
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


# -- launchers ---------------------------------------------------------------------------------------------------------


def test_resources_of_a_plan() -> None:
    a100 = find_gpu("a100-80gb")
    assert resources("skypilot", a100, 4).text == "num_nodes: 1\nresources:\n  accelerators: {A100-80GB: 4}\n"
    assert resources("dstack", a100, 4).text == (
        "resources:\n  gpu:\n    name: [A100]\n    memory: 80GB\n    count: 4\n"
    )
    assert resources("skypilot", a100, 16, 2).text.startswith(
        "num_nodes: 2\nresources:\n  accelerators: {A100-80GB: 8}"
    )
    assert resources("dstack", a100, 16, 2).text.startswith("nodes: 2\n")
    limited = resources("dstack", a100, 24, 3, Limit(100, "USD")).text
    assert limited.startswith("nodes: 3\nmax_price: 33.33\nresources:"), "dstack's limit is that of one machine"
    assert resources("dstack", a100, 8, 1, Limit(0.29, "USD")).text.startswith("max_price: 0.29\n")
    euros = resources("dstack", a100, 8, 1, Limit(5, "EUR"))
    assert "max_price:" not in euros.text
    assert "dollars" in euros.notes[-1]
    assert "leaves the limit" in resources("skypilot", a100, 8, 1, Limit(5, "USD")).notes[-1]
    assert "PCIe and SXM" in resources("skypilot", a100, 4).notes[0]
    for launcher in LAUNCHERS:
        with pytest.raises(UnsupportedError, match=f"{launcher} has no name for GTX 1650"):
            resources(launcher, find_gpu("gtx1650"), 1)


@pytest.mark.parametrize("count", ["auto", "2"])
def test_resources_on_the_command_line(count: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_search, "suggest_hardware", answered_once(hardware_search.suggest_hardware))
    asked = ("suggest", "qwen2.5-0.5b", "--gpu", "rtx4090", "--global-batch", "2", "--num-gpus", count)
    number = {"auto": 1, "2": 2}[count]
    done = cli(*asked, "--for", "skypilot")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"num_nodes: 1\nresources:\n  accelerators: {{RTX4090: {number}}}\n"
    assert f"count: {number}\n" in cli(*asked, "--for", "dstack").stdout
    nonsense = cli(*asked, "--for", "nonsense").stderr
    assert "--for nonsense" in nonsense
    assert "trl" in nonsense
    assert "skypilot, dstack" in nonsense
    framework = cli(*asked, "--for", "trl")
    assert "per_device_train_batch_size" in framework.stdout
    laptop = (*asked[:2], "--gpu", "rtx3060-laptop", *asked[4:6], "--num-gpus", "auto", "--seq-len", "512")
    done = cli(*laptop, "--for", "skypilot")
    assert done.returncode == 2
    assert "no name for" in done.stderr


def test_the_fastest_plan_is_rented_if_that_is_preferred() -> None:
    asked = ("suggest", "qwen2.5-0.5b", "--gpu", "rtx4090", "--global-batch", "8", "--num-gpus", "auto")
    done = cli(*asked, "--max-gpus", "2", "--max-price", "3", "--for", "dstack", "--prefer", "fastest")
    assert done.stdout.startswith("max_price: 3.00\n")
    assert "count: 2\n" in done.stdout


# -- the terminal and JSON ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        "--gpu rtx4090,l40s,mi300x --samples 1000",
        "--gpu rtx4090 --num-gpus auto --method full --seq-len 65536 --offload none",
        "--gpu rtx4090,l40s --max-price 0.1",
        "--gpu t4,rtx4090 --dtype bf16 -v",
    ],
)
def test_the_answer_keeps_to_the_width(flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One search, printed at several widths."""
    real, answers = hardware_search.suggest_hardware, []

    def once(*arguments: Any, **options: Any) -> vramplan.Hardware:
        if not answers:
            answers.append(real(*arguments, **options))
        return answers[0]

    monkeypatch.setattr(hardware_search, "suggest_hardware", once)
    asked = ("suggest", "qwen2.5-0.5b", "--global-batch", "2", *flags.split())
    for columns in (40, 60, 80, 120):
        done = cli(*asked, COLUMNS=str(columns))
        assert done.returncode in (0, 1), done.stderr
        assert max(map(len, done.stdout.splitlines())) <= columns
        plain = cli(*asked, COLUMNS=str(columns), LC_ALL="C")
        assert plain.stdout.isascii()
    assert len(answers) == 1


def test_what_is_shown() -> None:
    done = cli("suggest", "qwen2.5-0.5b", "--gpu", "rtx4090,mi300x,rtx3060-laptop", "--global-batch", "4")
    text = " ".join(done.stdout.split())
    assert done.returncode == 0
    assert "FITS" in text
    assert "Fewest GPUs: 1 × RTX 4090" in text
    assert "mi300x ≈" in text
    assert "not known" in text
    assert "as of 20" in text


def test_a_guess_that_is_better_stands_beside_what_is_known() -> None:
    found = search("rtx4090@windows,l40s", 2, max_gpus=1)
    assert found.fewest is not None
    assert found.fewest.gpu.name == "l40s"
    assert found.cheapest is not None
    assert found.cheapest.gpu.name == "l40s"
    assert [None if one is None else one.gpu.name for one in found.guesses] == [None, "rtx4090", "rtx4090"]
    alone = search("mi300x", 2, max_gpus=1)
    assert alone.fewest is not None, "guesses alone are all there is"
    assert alone.guesses == (None, None, None)
    asked = ("--gpu", "rtx4090@windows,l40s", "--global-batch", "2", "--max-gpus", "1")
    text = " ".join(cli("suggest", "qwen2.5-0.5b", *asked).stdout.split())
    assert "Fewest GPUs, fastest, cheapest: 1 × L40S" in text
    assert "Fastest, cheapest, a guess: 1 × RTX 4090 (Windows) ≈" in text
    assert "1 × rtx4090@windows ≈" in text
    assert "fewest, fastest and cheapest prefer" in text


def test_one_gpu_under_two_platforms_is_two() -> None:
    found = search("rtx4090,rtx4090@windows", 2, max_gpus=1)
    assert [plan.gpu.platform for plan in found.plans] == ["linux", "windows"]


def test_how_a_strategy_is_chosen_and_what_deepspeed_does_to_adapters_is_said() -> None:
    asked = (
        "suggest",
        "qwen2.5-7b",
        "--gpu",
        "rtx4090",
        "--num-gpus",
        "auto",
        "--max-gpus",
        "2",
        "--global-batch",
        "4",
    )
    plain = " ".join(cli(*asked).stdout.split())
    assert "DeepSpeed trains the adapters in bf16" in plain
    assert "--lora-dtype bf16" in plain
    assert "the simplest is shown" not in plain
    same = " ".join(cli(*asked, "--lora-dtype", "bf16", "-v").stdout.split())
    assert "DeepSpeed trains the adapters" not in same
    assert "within 2% of the fastest, the simplest is shown" in same


def test_json_has_what_the_terminal_shows(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[prices]\nrtx4090 = 2\n")
    flags = ("--gpu", "rtx4090", "--num-gpus", "auto", "--max-gpus", "2", "--global-batch", "4", "--samples", "40")
    found = json.loads(cli("suggest", "qwen2.5-0.5b", *flags, "--prices", str(prices), "--json").stdout)
    fewest = found["fewest"]
    assert (fewest["num_gpus"], fewest["strategy"], fewest["price"]["per_hour"]) == (1, "ddp", 2.0)
    assert fewest["steps"] == 10
    assert fewest["run_price"] == pytest.approx(10 * fewest["step_time"]["seconds"] * 2 / 3600, abs=1e-6)
    assert {one["num_gpus"] for one in found["plans"]} == {1, 2}


def test_progress_is_told() -> None:
    told_of: list[tuple[str, float]] = []
    search("rtx4090", 2, progress=lambda what, share: told_of.append((what, share)))
    assert any("RTX 4090" in what for what, _ in told_of)
    assert all(0 <= share <= 1 for _, share in told_of)


def test_a_model_that_needs_a_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no_such_type", "hidden_size": 8}')
    with pytest.raises(UnsupportedError, match="analytic estimator"):
        search(model=str(tmp_path))
