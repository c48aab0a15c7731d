"""Batches up to a budget of tokens: every sample once, within the budget, the same on every number of GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.length_distributions import lengths
from benchmarks.token_batches import KEPT, ROUNDED, budget
from benchmarks.token_batches_picture import table
from tests.helpers import ROOT
from vramplan.batching import TokenBudgetSampler
from vramplan.batching.packing import Limits, best_fit, micro_batches, sorted_chunks
from vramplan.batching.steps import bounds, number_of_steps
from vramplan.errors import ConfigError

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=120)


@st.composite
def samplers(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of a sampler that no check refuses."""
    lengths = draw(LENGTHS)
    divisible_by = draw(st.sampled_from([number for number in (1, 2, 3, 4, 6, 8) if number <= len(lengths)]))
    return {
        "lengths": lengths,
        "max_tokens": draw(st.integers(8, 300)),
        "global_tokens": draw(st.integers(1, 3000)),
        "padding_free": draw(st.booleans()),
        "pad_to_multiple_of": draw(st.sampled_from([None, 1, 8])),
        "max_samples": draw(st.sampled_from([None, 1, 3])),
        "longer": draw(st.sampled_from(["truncate", "alone"])),
        "seed": draw(st.integers(0, 5)),
        "window": draw(st.integers(1, 4)),
        "divisible_by": divisible_by,
    }


def of_rank(arguments: dict[str, Any], num_replicas: int, rank: int) -> TokenBudgetSampler:
    return TokenBudgetSampler(**{**arguments, "num_replicas": num_replicas, "rank": rank})


def replicas(arguments: dict[str, Any]) -> list[int]:
    return [number for number in range(1, 9) if arguments["divisible_by"] % number == 0]


@settings(deadline=None, max_examples=150)
@given(samplers(), st.integers(0, 3))
def test_every_sample_comes_once_and_every_micro_batch_is_within_the_budget(
    arguments: dict[str, Any], epoch: int
) -> None:
    limits = Limits(
        arguments["max_tokens"],
        arguments["padding_free"],
        arguments["pad_to_multiple_of"] or 1,
        arguments["max_samples"],
    )
    for num_replicas in replicas(arguments):
        ranks = [of_rank(arguments, num_replicas, rank) for rank in range(num_replicas)]
        epochs = []
        for sampler in ranks:
            sampler.set_epoch(epoch)
            epochs.append(list(sampler))
            assert len(epochs[-1]) == len(sampler)
        given_out = Counter(chain.from_iterable(chain.from_iterable(chain.from_iterable(epochs))))
        assert given_out == Counter(range(len(arguments["lengths"])))
        for step in zip(*epochs, strict=True):
            assert len({len(batches) for batches in step}) == 1, "every GPU has as many micro-batches"
            assert all(batches for batches in step)
        for batch in chain.from_iterable(chain.from_iterable(epochs)):
            tokens = limits.tokens([ranks[0].lengths[sample] for sample in batch])
            alone = arguments["longer"] == "alone" and len(batch) == 1
            assert tokens <= arguments["max_tokens"] or alone
            assert len(batch) <= (arguments["max_samples"] or len(batch))


@settings(deadline=None, max_examples=60)
@given(samplers(), st.integers(0, 2))
def test_steps_are_the_same_for_every_number_of_gpus_that_divides(arguments: dict[str, Any], epoch: int) -> None:
    def steps(num_replicas: int) -> list[Counter[tuple[int, ...]]]:
        ranks = [of_rank(arguments, num_replicas, rank) for rank in range(num_replicas)]
        for sampler in ranks:
            sampler.set_epoch(epoch)
        return [
            Counter(tuple(batch) for batches in step for batch in batches)
            for step in zip(*map(list, ranks), strict=True)
        ]

    first, *others = [steps(number) for number in replicas(arguments)]
    assert all(other == first for other in others)


@settings(deadline=None, max_examples=60)
@given(samplers(), st.integers(0, 2), st.data())
def test_a_restored_epoch_goes_on_as_the_uninterrupted_one(
    arguments: dict[str, Any], epoch: int, data: st.DataObject
) -> None:
    whole = of_rank(arguments, 1, 0)
    whole.set_epoch(epoch)
    stop = data.draw(st.integers(0, len(whole)))
    steps, state = [], None
    for number, step in enumerate(whole):
        if number == stop:
            break
        steps.append(step)
        state = json.loads(json.dumps(whole.state_dict()))
    later = of_rank({**arguments, "divisible_by": None}, 1, 0)
    if state is None:
        later.set_epoch(epoch)
        return
    later.load_state_dict(state)
    later.set_epoch(epoch)
    uninterrupted = of_rank(arguments, 1, 0)
    uninterrupted.set_epoch(epoch)
    assert steps + list(later) == list(uninterrupted)
    assert list(later) == list(uninterrupted), "the next iteration begins with the first step"


@settings(deadline=None, max_examples=100)
@given(LENGTHS, st.integers(60, 400), st.sampled_from([None, 2]))
def test_packing_takes_no_more_micro_batches_than_its_bounds_say(
    lengths: list[int], tokens: int, max_samples: int | None
) -> None:
    """Padded chunks are as few as possible; best-fit decreasing is never worse than sorted chunks of the same sums."""
    ordered = sorted(range(len(lengths)), key=lambda sample: -lengths[sample])
    most = max_samples or len(lengths)
    padded = sorted_chunks(ordered, lengths, tokens, most, lambda number: number)
    fewest = [0, *[len(lengths)] * len(lengths)]  # of the first n samples, by dynamic programming
    for stop in range(1, len(lengths) + 1):
        for start in range(max(0, stop - most), stop):
            if (stop - start) * lengths[ordered[start]] <= tokens:
                fewest[stop] = min(fewest[stop], fewest[start] + 1)
    assert len(padded) == fewest[-1]
    packed = best_fit(ordered, lengths, tokens, most)
    assert sorted(chain(*packed)) == sorted(ordered)
    assert len(packed) >= max(-(-sum(lengths) // tokens), -(-len(lengths) // most))
    if max_samples is None:
        for one, other in combinations(packed, 2):
            assert sum(lengths[sample] for sample in one + other) > tokens, "two that fit together are never apart"


def test_micro_batches_are_even_and_a_multiple() -> None:
    lengths = [100, 90, 80, 70, 60, 50, 40, 30]
    batches = micro_batches(range(8), lengths, Limits(400, padding_free=True), multiple=2)
    assert [sum(lengths[sample] for sample in batch) for batch in batches] == [260, 260]
    batches = micro_batches(range(8), lengths, Limits(400), multiple=4)
    assert len(batches) == 4
    assert max(len(batch) * lengths[batch[0]] for batch in batches) < 400


def test_too_few_samples_for_the_last_step_leave_empty_micro_batches_at_its_end() -> None:
    """Five samples that fill a micro-batch each cannot be dealt to four GPUs evenly."""
    epochs = [list(TokenBudgetSampler([10] * 5, 10, global_tokens=50, num_replicas=4, rank=rank)) for rank in range(4)]
    assert [[len(batch) for batch in step] for epoch in epochs for step in epoch] == [[1, 1], [1, 0], [1, 0], [1, 0]]
    sampler = TokenBudgetSampler([10] * 5, 10, global_tokens=50, num_replicas=4, rank=1)
    with pytest.raises(ConfigError, match="step 0: no sample is left for rank 1; StepLoader fills"):
        list(sampler.micro_batches())


def test_tokens_of_a_step_stay_near_the_wanted_ones() -> None:
    """Within what the samples at the two borders have, in every epoch; the number of steps never changes."""
    lengths = [5 + (37 * sample) % 90 for sample in range(500)]
    for epoch in range(3):
        sampler = TokenBudgetSampler(lengths, 300, global_tokens=1000, num_replicas=1)
        sampler.set_epoch(epoch)
        summary = sampler.summary()
        assert summary.steps == len(sampler) == round(sum(lengths) / 1000)
        mean = sum(lengths) / summary.steps
        assert mean - 95 <= summary.fewest_step_tokens <= summary.most_step_tokens <= mean + 95
        assert (summary.tokens, summary.largest_micro_batch <= 300) == (sum(lengths), True)
        assert 0 < summary.padding < 0.2


def test_accumulation_follows_the_lengths() -> None:
    """Few long samples need more micro-batches of padded tokens than many short ones with the same tokens."""
    short = TokenBudgetSampler([10] * 100, 100, global_tokens=1000)
    long = TokenBudgetSampler([51] * 20, 100, global_tokens=1000)
    assert [len(step) for step in short] == [10]
    assert [len(step) for step in long] == [20]


def test_order_is_random_in_steps_and_new_in_every_epoch() -> None:
    """With a window of 1 a step's samples are drawn without a look at their lengths: their mean varies as it should."""
    lengths = list(range(1, 1001))
    sampler = TokenBudgetSampler(lengths, 4000, global_tokens=10_000)
    first = [sorted(chain(*step)) for step in sampler]
    sampler.set_epoch(1)
    assert [sorted(chain(*step)) for step in sampler] != first
    sampler.set_epoch(0)
    assert [sorted(chain(*step)) for step in sampler] == first
    means = [sum(lengths[sample] for sample in step) / len(step) for step in first]
    expected = 288.7 / 20**0.5  # deviation of a mean of about 20 uniform lengths
    mean = sum(means) / len(means)
    deviation = (sum((value - mean) ** 2 for value in means) / len(means)) ** 0.5
    assert 0.6 * expected < deviation < 1.6 * expected


def test_bounds_of_steps() -> None:
    assert bounds([1] * 10, 3, 1) == [0, 3, 7, 10]
    assert bounds([9, 1, 1, 1], 4, 1) == [0, 1, 2, 3, 4]
    assert bounds([1] * 11, 2, 4) == [0, 4, 11]
    assert number_of_steps(1000, 10, 300, 4) == 2
    assert number_of_steps(10, 10, 300, 4) == 1


# -- bad input ---------------------------------------------------------------------------------------------------------


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "empty data set": ({"lengths": []}, r"^the data set is empty"),
    "no tokens": ({"lengths": [3, 0]}, r"^sample 1 has no tokens"),
    "a fraction": ({"lengths": [3, 2.5]}, r"^sample 1: its length is 2\.5, expected a whole number"),
    "a truth": ({"lengths": [True]}, r"^sample 0: its length is True"),
    "negative": ({"lengths": [-2]}, r"^sample 0: its length is -2"),
    "text": ({"lengths": "ab"}, r"^sample 0: its length is 'a'"),
    "too long": (
        {"lengths": [3, 99, 5, 80]},
        r"^sample 1 has 99 tokens; 2 samples in all are too long; the longest",
    ),
    "all too long": ({"lengths": [70, 60]}, r"^every sample is longer, the shortest has 60 tokens; the longest that"),
    "longest of all": ({"longest_sample": 2}, r"^every sample is longer|sample 0 has 3 tokens"),
    "longest above": ({"longest_sample": 51}, r"longest_sample=51: a micro-batch has at most 50 tokens"),
    "budget": ({"max_tokens": 0}, r"max_tokens=0: expected a whole number of 1 or more"),
    "budget text": ({"max_tokens": "many"}, r"max_tokens=many: expected a whole number"),
    "budget fraction": ({"max_tokens": 2.0}, r"max_tokens=2\.0: expected a whole number"),
    "multiple": ({"pad_to_multiple_of": 64}, r"pad_to_multiple_of=64: more than max_tokens=50"),
    "samples": ({"max_samples": 0}, r"max_samples=0: expected"),
    "step": ({"global_tokens": 0}, r"global_tokens=0: expected"),
    "choice": ({"longer": "drop"}, r"longer=drop: expected refuse, truncate or alone"),
    "rank": ({"rank": 2, "num_replicas": 2}, r"rank=2: expected less than num_replicas=2"),
    "multiple of ranks": ({"num_replicas": 2, "divisible_by": 3}, r"divisible_by=3: num_replicas=2 does not divide it"),
    "few samples": ({"num_replicas": 8}, r"^3 samples are fewer than divisible_by=8"),
    "window": ({"window": 0}, r"window=0: expected"),
    "seed": ({"seed": -1}, r"seed=-1: expected"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        TokenBudgetSampler(**{"lengths": [3, 4, 5], "max_tokens": 50, "global_tokens": 10, **arguments})
    assert "\n" not in str(refused.value)


def test_a_longer_sample_is_cut_or_alone_by_choice() -> None:
    lengths = [10, 80, 20, 20]
    cut = TokenBudgetSampler(lengths, 50, global_tokens=1000, longer="truncate", longest_sample=40)
    assert cut.lengths == [10, 40, 20, 20]
    alone = TokenBudgetSampler(lengths, 50, global_tokens=1000, longer="alone")
    assert [1] in next(iter(alone))
    assert alone.summary().largest_micro_batch == 80
    for padding_free in (False, True):
        options = {"longest_sample": 40, "longer": "alone", "padding_free": padding_free}
        (step,) = TokenBudgetSampler([5, 45, 5], 100, global_tokens=1000, **options)
        assert sorted(map(sorted, step)) == [[0, 2], [1]], "a sample above the longest is alone, also within the budget"


SAVED = {"lengths": [3, 4, 5, 6, 7, 8, 9, 10], "max_tokens": 20, "global_tokens": 20, "num_replicas": 4}


def saved(**changed: Any) -> dict[str, Any]:
    sampler = TokenBudgetSampler(**SAVED)
    next(iter(sampler))
    return {**sampler.state_dict(), **changed}


def test_another_number_of_gpus_goes_on_if_it_divides_the_saved_one() -> None:
    reference = TokenBudgetSampler(**{**SAVED, "num_replicas": 1, "divisible_by": 4})
    later = TokenBudgetSampler(**{**SAVED, "num_replicas": 1})
    later.load_state_dict(saved())
    assert list(later) == list(reference)[1:]
    for number in (3, 8):
        other = TokenBudgetSampler(**{**SAVED, "num_replicas": number})
        with pytest.raises(ConfigError, match=f"divisible_by=4, which num_replicas={number} does not divide"):
            other.load_state_dict(saved())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 1}, "saved state has seed=0, this sampler seed=1: its optimizer steps have other samples"),
        ({"max_tokens": 30}, "saved state has max_tokens=20, this sampler max_tokens=30"),
        ({"lengths": [3, 4]}, "saved state has samples=8, this sampler samples=2"),
        ({"lengths": [3, 4, 5, 6, 7, 8, 10, 9]}, "saved state has lengths="),
    ],
)
def test_a_state_of_other_steps_is_refused_by_name(changed: dict[str, Any], message: str) -> None:
    other = TokenBudgetSampler(**{**SAVED, "num_replicas": 2, **changed})
    with pytest.raises(ConfigError, match=message):
        other.load_state_dict(saved())


@pytest.mark.parametrize(
    "state", [{}, {"epoch": 0}, saved(steps_done=-1), saved(epoch="x"), saved(steps_done=99), saved(settings={}), None]
)
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(ConfigError):
        TokenBudgetSampler(**SAVED).load_state_dict(state)


def test_the_sampler_works_without_torch() -> None:
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('torch', 'transformers', 'accelerate', 'numpy')))\n"
        "from vramplan.batching import TokenBudgetSampler\n"
        "print(list(TokenBudgetSampler([5, 5], 10, global_tokens=10)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[[[0, 1]]]\n"), done.stderr


# -- the evidence ------------------------------------------------------------------------------------------------------


def test_the_table_of_the_guide_is_the_kept_result() -> None:
    """``python -m benchmarks.token_batches --write`` keeps it."""
    results = json.loads(KEPT.read_text())
    assert table(results) in (ROOT / "docs" / "guides" / "token-budget.md").read_text()
    for kind in results["kinds"].values():
        ways = kind["ways"]
        assert max(way["largest"] for way in ways.values()) <= kind["budget"]
        assert ways["token budget"]["seconds"] < ways["fixed number"]["seconds"]


def test_kept_counts_are_what_the_sampler_makes() -> None:
    result = json.loads(KEPT.read_text())["kinds"]["long tail"]
    for name, options in {
        "token budget": {"pad_to_multiple_of": ROUNDED},
        "token budget, window 4": {"pad_to_multiple_of": ROUNDED, "window": 4},
        "token budget, padding-free": {"padding_free": True},
    }.items():
        steps = budget(lengths("long tail", 4000, 0), result["budget"], 0, **options)
        assert sum(map(len, steps)) == result["ways"][name]["micro_batches"]
