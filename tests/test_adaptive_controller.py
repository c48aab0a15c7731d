"""The controller: what moves a run from rung to rung, and what does not."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramplan.adaptive.controller import Controller, Observation
from vramplan.adaptive.coupling import Coupling, rule_for
from vramplan.adaptive.ladder import global_batches
from vramplan.adaptive.policies.policy import Wish
from vramplan.adaptive.rung import Rung
from vramplan.errors import ConfigError, UnknownNameError, VramplanError


class Script:
    """Asks for what it is told to."""

    name = "script"
    needs = "loss"

    def __init__(self, *batches, is_measured=True, may_shrink=False, needs_norms=False):
        self.batches, self.number = batches, 0
        self.is_measured, self.may_shrink, self.needs_norms = is_measured, may_shrink, needs_norms

    def wish(self, observation, batch):
        asked = self.batches[min(self.number, len(self.batches) - 1)]
        self.number += 1
        return None if asked is None else Wish(asked, f"asks for {asked}", {"asked": asked})

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


def rung(micro, steps, gpus=1):
    smaller = [size for size in (8, 4, 2, 1) if size < micro]
    return Rung(micro, steps, gpus, alternatives=tuple(Rung(size, steps * micro // size, gpus) for size in smaller))


LADDER = (rung(4, 1), rung(8, 1), rung(8, 2), rung(8, 4), rung(8, 8))


def run(controller, steps, loss=lambda step: 2.0, **norms):
    """The decisions of some steps."""
    decisions = []
    for _ in range(steps):
        step = controller._step + 1
        samples = controller._samples + controller.rung.global_batch_size
        observation = Observation(step=step, samples=samples, tokens=10 * samples, loss=loss(step), **norms)
        decisions.append(controller.observe(observation))
    return [decision for decision in decisions if decision is not None]


def test_a_measured_wish_leads_one_rung_further_after_it_has_lasted():
    controller = Controller(LADDER, Script(1000.0), dwell=20)
    decisions = run(controller, 30)
    assert [decision.after.global_batch_size for decision in decisions] == [8, 16, 32, 64]
    assert [decision.samples for decision in decisions] == [20, 44, 76, 108]  # never earlier than 20 samples later
    assert controller.rung.global_batch_size == 64


def test_a_wish_that_does_not_last_changes_nothing():
    controller = Controller(LADDER, Script(*[64.0, 64.0, 64.0, 2.0] * 50), dwell=20)
    assert run(controller, 200) == []
    controller = Controller(LADDER, Script(*[64.0, 64.0, 64.0, None] * 50), dwell=20)
    assert run(controller, 200) == []


def test_dwell_counts_tokens_too():
    controller = Controller(LADDER, Script(1000.0), dwell=200, unit="tokens")
    assert run(controller, 6)[0].tokens == 200


def test_a_batch_between_two_rungs_changes_nothing():
    controller = Controller(LADDER, Script(64.0, may_shrink=True))
    run(controller, 10)
    controller.policy.batches = (33.0, 63.0, 64.0, 100.0)
    assert run(controller, 20) == []
    controller.policy.batches = (32.0,)
    assert [(decision.kind, decision.after.global_batch_size) for decision in run(controller, 1)] == [("shrink", 32)]


def test_no_policy_shrinks_unless_it_may():
    for is_measured in (True, False):
        controller = Controller(LADDER, Script(64.0, is_measured=is_measured))
        run(controller, 10)
        controller.policy.batches = (1.0,)
        assert run(controller, 50) == []


def test_a_plan_is_followed_at_once_over_several_rungs():
    controller = Controller(LADDER, Script(40.0, is_measured=False), dwell=10_000)
    (decision,) = run(controller, 3)
    assert (decision.step, decision.after.global_batch_size) == (1, 32)


def test_a_decision_is_one_line_of_json_with_its_reason():
    (decision,) = run(Controller(LADDER, Script(8.0)), 1)
    line = decision.json_line()
    assert "\n" not in line
    assert json.loads(line) == {
        "kind": "grow",
        "step": 1,
        "samples": 4,
        "tokens": 40,
        "before": {"global_batch_size": 4, "micro_batch_size": 4, "gradient_accumulation_steps": 1, "num_gpus": 1},
        "after": {"global_batch_size": 8, "micro_batch_size": 8, "gradient_accumulation_steps": 1, "num_gpus": 1},
        "learning_rate_factor": 2**0.5,
        "reason": "asks for 8.0",
        "values": {"asked": 8.0},
    }


# -- learning rate and betas -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "factor"), [("sqrt", 2.0), ("linear", 4.0), ("none", 1.0)])
def test_the_learning_rate_follows_the_batch(rule, factor):
    controller = Controller(LADDER, Script(16.0, is_measured=False), Coupling(rule))
    assert controller.learning_rate_factor == 1
    run(controller, 1)
    assert controller.learning_rate_factor == factor


def test_the_rate_warms_up_to_its_new_value():
    controller = Controller(LADDER, Script(16.0, is_measured=False), Coupling("linear", rewarm=64))
    run(controller, 1)
    factors = [controller.learning_rate_factor]
    for _ in range(5):
        run(controller, 1)
        factors.append(controller.learning_rate_factor)
    assert factors == [1.0, 1.75, 2.5, 3.25, 4.0, 4.0]


def test_the_second_moment_keeps_its_half_life_in_samples():
    controller = Controller(LADDER, Script(64.0, is_measured=False))
    run(controller, 1)
    beta1, beta2 = controller.betas((0.9, 0.999))
    assert beta1 == 0.9
    assert beta2 ** (1 / 64) == pytest.approx(0.999 ** (1 / 4), rel=1e-12)  # what is kept after one sample
    controller = Controller(LADDER, Script(64.0, is_measured=False), Coupling(keeps_half_life=False))
    run(controller, 1)
    assert controller.betas((0.9, 0.999)) == (0.9, 0.999)


def test_a_rate_that_was_set_for_another_batch():
    controller = Controller(LADDER, Script(None), Coupling("sqrt"), base_batch=16)
    assert controller.learning_rate_factor == 0.5
    assert controller.betas((0.9, 0.9999))[1] == pytest.approx(0.9999**0.25)


def test_rules_of_optimizers():
    assert [rule_for(name) for name in ("adamw_torch", "muon", "sgd")] == ["sqrt", "sqrt", "linear"]
    with pytest.raises(VramplanError, match="adamv"):
        rule_for("adamv")
    with pytest.raises(UnknownNameError, match="did you mean sqrt"):
        Coupling("sqr")


# -- out of memory -----------------------------------------------------------------------------------------------------


def test_out_of_memory_keeps_the_global_batch_and_is_remembered():
    controller = Controller(LADDER, Script(16.0, 16.0, 16.0, 64.0))
    run(controller, 2)
    decision = controller.out_of_memory()
    assert decision.kind == "out of memory"
    assert (decision.before.micro_batch_size, decision.after.micro_batch_size) == (8, 4)
    assert decision.before.global_batch_size == decision.after.global_batch_size == 16
    assert controller.learning_rate_factor == 2
    run(controller, 10)
    assert (controller.rung.global_batch_size, controller.rung.micro_batch_size) == (64, 4)
    assert [controller.out_of_memory().after.micro_batch_size for _ in range(2)] == [2, 1]
    with pytest.raises(ConfigError, match="out of memory at micro-batch 1, and no smaller one of global batch 64"):
        controller.out_of_memory()
    assert controller.rung.micro_batch_size == 1


def test_rungs_without_a_small_enough_micro_batch_are_out_of_reach():
    ladder = (Rung(4, 1, alternatives=(Rung(2, 2),)), Rung(4, 2, alternatives=(Rung(2, 4),)), Rung(4, 4))
    controller = Controller(ladder, Script(16.0))
    controller.out_of_memory()
    run(controller, 10)
    assert controller.rung == Rung(2, 4)


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_used_is_counted_and_changes_nothing():
    controller = Controller(LADDER, Script(64.0, needs_norms=True))
    good = {"small_norm_squared": 2.0, "small_batch": 2, "large_norm_squared": 1.0, "large_batch": 4}
    nan, inf = float("nan"), float("inf")
    cases = {
        "loss is not finite": [{"loss": lambda _: nan}, {"loss": lambda _: inf}, {"loss": lambda _: -1e300}],
        "small norm squared is not finite": [{"small_norm_squared": nan}],
        "large norm squared is not finite": [{"large_norm_squared": inf}],
        "a squared norm is negative": [{"small_norm_squared": -1.0}],
        "the gradient is zero": [{"small_norm_squared": 0.0}, {"large_norm_squared": 0.0}],
        "learning rate is not finite": [{"learning_rate": nan}],
        "loss was not given": [{"loss": lambda _: None}],
        "one micro-batch on one GPU: the noise needs gradients of two batch sizes": [{"small_batch": 4}],
        "gradient norms were not measured": [{"small_norm_squared": None}],
    }
    for changes in cases.values():
        for change in changes:
            assert run(controller, 5, **{**good, **change}) == []
    assert controller.unused == {reason: 5 * len(changes) for reason, changes in cases.items()}
    assert controller.policy.number == 0
    json.dumps(controller.state_dict(), allow_nan=False)
    assert len(run(controller, 1, **good)) == 1


def test_norms_that_are_biased_are_used_and_said_to_be():
    controller = Controller(LADDER, Script(8.0, needs_norms=True))
    norms = {"small_norm_squared": 2.0, "small_batch": 4, "large_norm_squared": 1.0, "large_batch": 8}
    (decision,) = run(controller, 1, **norms, biased=True)
    assert decision.reason == "asks for 8.0 (norms of consecutive steps: the noise scale is biased)"
    assert controller.unused == {"norms of consecutive steps: the noise scale is biased": 1}


def test_a_spike_of_the_loss_begins_the_dwell_anew():
    noise = random.Random(1)
    losses = [2 + 0.1 * noise.gauss(0, 1) for _ in range(100)]
    calm = Controller(LADDER, Script(*[None] * 40, 8.0), dwell=40)
    spiky = Controller(LADDER, Script(*[None] * 40, 8.0), dwell=40)
    (at_once,) = run(calm, 60, lambda step: losses[step])
    (later,) = run(spiky, 60, lambda step: 9.0 if step == 45 else losses[step])
    assert (at_once.step, later.step) == (50, 55)
    assert spiky.unused == {"the loss jumped": 1}


def test_no_batch_grows_while_the_loss_rises():
    noise = random.Random(2)
    controller = Controller(LADDER, Script(*[None] * 100, 64.0))
    decisions = run(controller, 400, lambda step: 2 + max(0, step - 60) * 0.01 + 0.1 * noise.gauss(0, 1))
    assert decisions == []


def test_a_loss_that_does_not_rise_seldom_holds_a_batch_back():
    """Of 200 runs with a loss that stays, or falls, few are held back at all."""
    for slope in (0.0, -0.001):
        held = 0
        for seed in range(200):
            noise = random.Random(seed)
            losses = [2 + slope * step + 0.1 * noise.gauss(0, 1) for step in range(102)]
            controller = Controller(LADDER[:2], Script(*[None] * 100, 8.0))
            held += not run(controller, 101, losses.__getitem__)
        assert held <= 4


def test_steps_go_forward():
    controller = Controller(LADDER, Script(None))
    run(controller, 3)
    for step, samples in ((3, 100), (2, 100), (4, 11)):
        with pytest.raises(ConfigError, match=f"step {step} was observed after step 3"):
            controller.observe(Observation(step=step, samples=samples, tokens=1000))


@pytest.mark.parametrize(
    ("rungs", "message"),
    [
        ((), "a ladder without rungs"),
        ((Rung(2, 1), Rung(1, 2)), "ascend in global batch, not 2, 2"),
        ((Rung(2, 2), Rung(1, 2)), "ascend in global batch, not 4, 2"),
        ((Rung(2, 2, alternatives=(Rung(1, 2),)),), "an alternative to global batch 4 has 2"),
        ((Rung(2, 2, alternatives=(Rung(4, 1),)),), "ever smaller micro-batches, not 2, 4"),
    ],
)
def test_rungs_that_are_no_ladder(rungs, message):
    with pytest.raises(ConfigError, match=message):
        Controller(rungs, Script(None))


def test_settings_that_are_impossible():
    for settings_, message in (
        ({"dwell": -1}, "dwell=-1: expected 0 or more"),
        ({"unit": "steps"}, "unit=steps: expected samples or tokens"),
        ({"base_batch": 0}, "base_batch=0: expected 1 or more"),
    ):
        with pytest.raises(ConfigError, match=message):
            Controller(LADDER, Script(None), **settings_)
    with pytest.raises(ConfigError, match="rewarm=-1: expected 0 or more"):
        Coupling(rewarm=-1)
    with pytest.raises(ConfigError, match="micro_batch_size=0: expected a whole number"):
        Rung(0, 1)


# -- saved and restored ------------------------------------------------------------------------------------------------


def test_a_saved_controller_goes_on_as_if_it_had_not_stopped():
    noise = random.Random(3)
    losses = [2 + 0.1 * noise.gauss(0, 1) for _ in range(300)]
    asked = [noise.choice([None, 4.0, 20.0, 80.0, 80.0, 80.0]) for _ in range(300)]

    def controller():
        return Controller(LADDER, Script(*asked, may_shrink=True), Coupling("sqrt", rewarm=50), dwell=12)

    whole = controller()
    expected = [decision.json_line() for decision in run(whole, 200, losses.__getitem__)]
    for stop in (1, 7, 50, 150):
        first, second = controller(), controller()
        lines = [decision.json_line() for decision in run(first, stop, losses.__getitem__)]
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert second.state_dict() == first.state_dict()
        assert second.learning_rate_factor == first.learning_rate_factor
        lines += [decision.json_line() for decision in run(second, 200 - stop, losses.__getitem__)]
        assert lines == expected
        assert second.state_dict() == whole.state_dict()


def test_resume_on_another_number_of_gpus():
    two = (rung(2, 1, 2), rung(4, 1, 2), rung(4, 2, 2))
    first = Controller(LADDER, Script(16.0, is_measured=False))
    run(first, 1)
    second = Controller(two, Script(16.0))
    second.load_state_dict(first.state_dict())
    assert second.rung == two[2]
    assert second.learning_rate_factor == 2
    with pytest.raises(ConfigError, match="at global batch 16, which these 3 GPUs' ladder lacks: 12, 24"):
        Controller((Rung(4, 1, 3), Rung(8, 1, 3)), Script(16.0)).load_state_dict(first.state_dict())


def test_states_that_do_not_belong():
    first = Controller(LADDER, Script(16.0))
    state = first.state_dict()
    second = Controller(LADDER, Script(16.0))
    for change, message in (
        ({"format": 0}, "has format 0; this version reads 1"),
        ({"policy_name": "norm test"}, "is of policy norm test in samples, not of script in samples"),
        ({"unit": "tokens"}, "is of policy script in tokens"),
        ({"micro_limit": 0}, "out of memory at micro-batch 1, and no smaller one of global batch 4"),
    ):
        with pytest.raises(ConfigError, match=message):
            second.load_state_dict({**state, **change})
        assert second.state_dict() == state


@settings(max_examples=200, deadline=None)
@given(
    start=st.integers(1, 5),
    rungs=st.integers(1, 6),
    asked=st.lists(st.one_of(st.none(), st.floats(0, 1e12), st.just(float("inf"))), min_size=1, max_size=60),
    is_measured=st.booleans(),
    may_shrink=st.booleans(),
    dwell=st.integers(0, 100),
    out_of_memory=st.sets(st.integers(0, 60), max_size=4),
)
def test_no_decision_leaves_the_ladder(start, rungs, asked, is_measured, may_shrink, dwell, out_of_memory):
    ladder = tuple(
        rung(1, batch) if batch % 2 else rung(2, batch // 2) for batch in global_batches(start, start << rungs)
    )
    controller = Controller(ladder, Script(*asked, is_measured=is_measured, may_shrink=may_shrink), dwell=dwell)
    ways = {way for one in ladder for way in (one, *one.alternatives)}
    smallest_failed = 1 << 30
    for number in range(len(asked)):
        before = controller.rung
        if number in out_of_memory:
            try:
                controller.out_of_memory()
            except ConfigError:
                assert before.micro_batch_size == 1
            else:
                smallest_failed = before.micro_batch_size
        for decision in run(controller, 1):
            batches = decision.before.global_batch_size, decision.after.global_batch_size
            assert decision.kind == ("grow" if batches[1] > batches[0] else "shrink")
            assert may_shrink or decision.kind == "grow"
            assert not is_measured or abs(ladder_index(ladder, batches[0]) - ladder_index(ladder, batches[1])) == 1
        assert controller.rung in ways
        assert controller.rung.micro_batch_size < smallest_failed


def ladder_index(ladder, batch):
    return [one.global_batch_size for one in ladder].index(batch)
