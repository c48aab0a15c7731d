"""The policies: what each asks for, and that it goes on as before when it is restored."""

from __future__ import annotations

import json
import random
from math import cos, pi, sqrt

import pytest

from vramplan.adaptive.controller import Controller, Observation
from vramplan.adaptive.coupling import Coupling
from vramplan.adaptive.noise_scale import NoiseScale, single_step
from vramplan.adaptive.policies.constant import Constant
from vramplan.adaptive.policies.noise_scale import NoiseScalePolicy
from vramplan.adaptive.policies.norm_test import NormTest
from vramplan.adaptive.policies.plateau import Plateau
from vramplan.adaptive.policies.schedule import Schedule
from vramplan.adaptive.policies.seesaw import Seesaw
from vramplan.adaptive.rung import Rung
from vramplan.errors import ConfigError

LADDER = tuple(Rung(1, 4 * 2**number) for number in range(8))
DIMENSIONS = 20_000


def norms(noise, signal, trace, small, count):
    """Squared norms of a Gaussian gradient of known |G|^2 and tr(Sigma), as they are distributed.

    With independent entries, the deviations of `count` gradients of `small` samples from their mean have a squared sum
    that is chi-squared, independent of the mean.
    """
    variance = trace / DIMENSIONS / small
    along = sqrt(signal) + noise.gauss(0, sqrt(variance / count))
    large = along**2 + variance / count * noise.gammavariate((DIMENSIONS - 1) / 2, 2)
    spread = variance * noise.gammavariate((count - 1) * DIMENSIONS / 2, 2)
    return {
        "small_norm_squared": large + spread / count,
        "small_batch": small,
        "large_norm_squared": large,
        "large_batch": small * count,
    }


def observation(step, batch, **more):
    return Observation(step=step, samples=step * batch, tokens=step * batch * 10, **more)


def run(controller, steps, signal, trace, noise, count=4, loss=lambda step: 2.0):
    """Steps whose gradients have this signal and noise, which may follow the samples; the decisions."""
    decisions = []
    for _ in range(steps):
        step, batch = controller._step + 1, controller.rung.global_batch_size
        samples = controller._samples + batch
        known = norms(noise, signal(samples), trace(samples), batch // count, count)
        told = Observation(step=step, samples=samples, tokens=samples, loss=loss(step), **known)
        decisions.append(controller.observe(told))
    return [decision for decision in decisions if decision is not None]


# -- the estimator -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("small", [8, 64])
def test_the_noise_scale_is_within_5_percent(small, count):
    noise = random.Random(small * 100 + count)
    average = NoiseScale(half_life=10**9)  # all steps count alike
    for _ in range(6000):
        known = norms(noise, 1.0, 500.0, small, count)
        average.add(*single_step(observation(1, 1, **known)), 1)
    estimate = average.estimate()
    assert estimate.noise_scale == pytest.approx(500, rel=0.05)
    assert estimate.trace == pytest.approx(500, rel=0.01)


def test_its_spread_is_what_repetitions_show():
    estimates = []
    for seed in range(300):
        noise = random.Random(seed)
        average = NoiseScale(half_life=400)
        for _ in range(150):
            average.add(*single_step(observation(1, 1, **norms(noise, 1.0, 200.0, 8, 4))), 32)
        estimates.append(average.estimate())
    scales = [estimate.noise_scale for estimate in estimates]
    mean = sum(scales) / len(scales)
    seen = sqrt(sum((scale - mean) ** 2 for scale in scales) / (len(scales) - 1)) / mean
    told = sum(estimate.relative_std for estimate in estimates) / len(estimates)
    assert told == pytest.approx(seen, rel=0.2)


def test_the_ratio_of_means_and_not_the_mean_of_ratios():
    average = NoiseScale(half_life=100)
    average.add(4.0, 1.0, 100)
    assert average.estimate() is None  # one step says nothing of the spread
    average.add(2.0, 3.0, 100)
    estimate = average.estimate()
    assert estimate.noise_scale == pytest.approx((4 * 0.25 + 2 * 0.5) / (1 * 0.25 + 3 * 0.5))
    average.add(-9.0, 3.0, 100)
    assert average.estimate() is None


def test_a_half_life_is_one():
    average = NoiseScale(half_life=64)
    for _ in range(1000):
        average.add(1.0, 1.0, 8)
    for _ in range(8):
        average.add(3.0, 1.0, 8)
    assert average.estimate().noise_scale == pytest.approx(2.0)


# -- each policy -------------------------------------------------------------------------------------------------------


def test_the_batch_follows_the_noise_scale():
    noise = random.Random(1)
    controller = Controller(LADDER, NoiseScalePolicy(half_life=2000), dwell=2000)
    decisions = run(controller, 3000, lambda samples: 1.0, lambda samples: 20 + samples / 500, noise)
    scales = [decision.values["noise_scale"] for decision in decisions]
    assert [decision.after.global_batch_size for decision in decisions] == [8, 16, 32, 64, 128, 256]
    for decision, scale in zip(decisions, scales, strict=True):
        assert scale >= decision.after.global_batch_size
        assert "noise scale" in decision.reason
    for decision in decisions[2:]:  # the first two waited for an estimate, later ones for the noise
        assert 20 + decision.samples / 500 == pytest.approx(decision.after.global_batch_size, rel=0.35)


def test_a_share_of_the_noise_scale():
    for share, batch in ((1.0, 64), (0.25, 16)):
        controller = Controller(LADDER, NoiseScalePolicy(4000, share=share), dwell=1000)
        run(controller, 2000, lambda _: 1.0, lambda _: 100.0, random.Random(2))
        assert controller.rung.global_batch_size == batch


@pytest.mark.parametrize("signal", [0.0, 1e-6])
def test_a_converged_run_seldom_triggers(signal):
    """Where the gradient is all noise its square is zero on average: of 60 runs of 1,000 steps, at most 3 grow."""
    grown = 0
    for seed in range(60):
        controller = Controller(LADDER, NoiseScalePolicy(half_life=16 * 50), dwell=16 * 100)
        controller._index = 2
        grown += bool(run(controller, 1000, lambda _: signal, lambda _: 1.0, random.Random(seed)))
    assert grown <= 3


def test_a_diverging_run_does_not_trigger():
    """The loss rises while the noise scale would have the batch grow."""
    grown = 0
    for seed in range(40):
        noise = random.Random(seed)
        controller = Controller(LADDER, NoiseScalePolicy(half_life=400), dwell=800)
        decisions = run(
            controller, 600, lambda _: 1.0, lambda _: 1000.0, noise,
            loss=lambda step: 2 + 0.02 * step + 0.1 * random.Random(step).gauss(0, 1),
        )  # fmt: skip
        grown += bool(decisions)
    assert grown <= 2


def test_the_norm_test_asks_for_the_batch_that_meets_it():
    policy = NormTest(eta=0.5)
    known = {"small_norm_squared": 5.0, "small_batch": 4, "large_norm_squared": 2.0, "large_batch": 16}
    wish = policy.wish(observation(1, 16, **known), 16)
    trace = 3.0 / (1 / 4 - 1 / 16)
    assert wish.batch == pytest.approx(trace / (0.25 * 2.0))
    # at that batch it holds with equality
    assert trace / wish.batch == pytest.approx(0.25 * known["large_norm_squared"])
    assert policy.wish(observation(1, 16, **known), 64) is None


def test_seesaw_doubles_the_batch_where_the_schedule_halves_the_rate():
    peak, total = 1e-3, 20_000
    controller = Controller(LADDER[:5], Seesaw(), Coupling("sqrt"))
    decisions, rates, step = [], [], 0
    while controller._samples < total:
        step += 1
        samples = controller._samples + controller.rung.global_batch_size
        rate = peak * min(1.0, samples / 1000) * (1 + cos(pi * min(1.0, samples / total))) / 2
        told = Observation(step=step, samples=samples, tokens=samples, learning_rate=rate)
        rates.append((rate, controller.learning_rate_factor))
        decisions.append(controller.observe(told))
    decisions = [decision for decision in decisions if decision is not None]
    assert [decision.after.global_batch_size for decision in decisions] == [8, 16, 32, 64]
    for number, decision in enumerate(decisions, 1):
        assert decision.values["learning_rate"] <= decision.values["peak_learning_rate"] / 2**number
        assert decision.learning_rate_factor == pytest.approx(sqrt(2) ** number)
        # the paper's rate after the cut, relative to the peak; the schedule has gone on by a step at most
        effective = decision.values["learning_rate"] * decision.learning_rate_factor
        assert effective == pytest.approx(decision.values["peak_learning_rate"] / sqrt(2) ** number, rel=0.02)
    assert step < 0.9 * total / 4


def test_seesaw_of_a_stepwise_schedule_is_the_papers():
    controller = Controller(LADDER, Seesaw(), Coupling("sqrt"))
    applied = []
    for step in range(1, 41):
        samples = controller._samples + controller.rung.global_batch_size
        rate = 0.8 * 0.5 ** ((step - 1) // 10)
        applied.append(rate * controller.learning_rate_factor)
        controller.observe(Observation(step=step, samples=samples, tokens=samples, learning_rate=rate))
    assert controller.rung.global_batch_size == 32
    assert applied[9] == 0.8
    assert [applied[number] for number in (19, 29, 39)] == pytest.approx([0.8 / sqrt(2) ** k for k in (1, 2, 3)])


def test_a_fixed_schedule():
    controller = Controller(LADDER, Schedule([(0, 4), (100, 16), (300, 12), (400, 10_000)]))
    seen = []
    for step in range(1, 60):
        samples = controller._samples + controller.rung.global_batch_size
        decision = controller.observe(Observation(step=step, samples=samples, tokens=samples))
        if decision is not None:
            seen.append((decision.samples, decision.after.global_batch_size))
    assert seen == [(100, 16), (308, 8), (404, 512)]
    with pytest.raises(ConfigError, match="ascend from 0 on"):
        Schedule([(10, 4), (10, 8)])
    with pytest.raises(ConfigError, match="1 or more"):
        Schedule([(0, 0)])


def test_the_published_loss_rule():
    policy = Plateau(interval=100, smallest=8, largest=40)
    asked = []
    losses = [3.0, 2.5, 2.2, 2.0, 1.9, 1.895, 1.89, 1.885, 1.88, 1.88]
    for step in range(1, 101):
        wish = policy.wish(observation(step, 10, loss=losses[(step - 1) // 10]), 16)
        if wish is not None:
            asked.append(wish.batch)
    grown = [16 * 1.1**power for power in range(1, 9)]
    # the last five losses change by less than 0.01 first at the ninth time
    assert asked == pytest.approx([*grown, grown[-1] / 2, grown[-1] / 4])


# -- common to all -----------------------------------------------------------------------------------------------------

POLICIES = {
    "noise-scale": lambda: NoiseScalePolicy(half_life=500, may_shrink=True),
    "norm-test": lambda: NormTest(0.3),
    "seesaw": Seesaw,
    "schedule": lambda: Schedule([(0, 4), (500, 8), (3000, 32)]),
    "plateau": lambda: Plateau(200, 4, 64),
    "constant": Constant,
}


def record(policy, count):
    """Observations of a run that do not depend on decisions."""
    noise = random.Random(7)
    told = []
    for step in range(1, count + 1):
        known = norms(noise, 1.0, 40 + step, 8, 4)
        rate = 1e-3 * 0.99**step
        told.append(observation(step, 32, loss=2 + 0.05 * noise.gauss(0, 1), learning_rate=rate, **known))
    return told


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_deterministic_and_restores_exactly(name):
    told = record(name, 300)

    def controller():
        return Controller(LADDER, POLICIES[name](), dwell=300)

    def lines(one, observations):
        decisions = [one.observe(observation) for observation in observations]
        return [decision.json_line() for decision in decisions if decision is not None]

    whole, again = controller(), controller()
    expected = lines(whole, told)
    assert lines(again, told) == expected
    assert bool(expected) == (name != "constant")
    for stop in (1, 3, 60, 200):
        first, second = controller(), controller()
        before = lines(first, told[:stop])
        second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
        assert before + lines(second, told[stop:]) == expected
        assert json.dumps(second.state_dict()) == json.dumps(whole.state_dict())


def test_settings_that_are_impossible():
    for make, message in (
        (lambda: NoiseScalePolicy(0), "half_life=0: expected 1 or more"),
        (lambda: NoiseScalePolicy(1, share=0), "share=0: expected a positive number"),
        (lambda: NoiseScalePolicy(1, most_spread=float("nan")), "most_spread=nan: expected a positive number"),
        (lambda: NormTest(-1), "eta=-1: expected a positive number"),
        (lambda: Plateau(0, 1, 2), "interval=0: expected 1 or more"),
        (lambda: Plateau(1, 3, 2), "smallest=3 and largest=2 are no limits"),
        (lambda: Schedule([], "samples"), "ascend from 0 on"),
        (lambda: Schedule([(0, 1)], "steps"), "unit=steps: expected samples or tokens"),
    ):
        with pytest.raises(ConfigError, match=message):
            make()
