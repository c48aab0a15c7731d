"""Records of steps: a second micro-step written from the first, and lines through records of other micro-batches.

Each is compared with a simulation of its own, over a share of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import product
from typing import Any

import pytest

from tests.helpers import card_of
from tests.matrix import GROUPS
from tests.matrix_cases import OTHERS, SEEING, Case, all_cases, seeing_job, spec_for
from vramplan.analytic import batch_scaling
from vramplan.analytic.batch_scaling import BETWEEN, FIRST, LEAST_BEYOND, BatchScaling, LinearRecord, StepAt
from vramplan.analytic.prepare import prepare
from vramplan.analytic.second_micro_step import with_second_micro_step
from vramplan.analytic.step_record import StepRecord, do_the_same
from vramplan.analytic.train_step import simulate_evaluation, simulate_step, waiting_batches
from vramplan.inputs.job import Job

UNSEEN = (5, 7, 33)
"""Micro-batches at which no line is simulated."""
SAMPLE = list(GROUPS)[::3]
"""The families of which a case runs by default."""
Simulate = Callable[[int, int], StepRecord]


def cases_of(family: str) -> list[Case]:
    return [case for case in all_cases() if case.family == family]


def one_of(family: str) -> Case:
    """A case of a family; over the families the settings take turns."""
    cases = cases_of(family)
    return cases[7 * SAMPLE.index(family) % len(cases)]


def rarer() -> list[Case]:
    """One of eight of the rarer settings."""
    return [case for case in all_cases() if case.setting == "rarer"][::8]


def simulations(case: Case) -> tuple[BatchScaling, Simulate]:
    """The scaled steps of a case, and the simulation at (micro-batch, micro-steps); 0 micro-steps are an evaluation."""
    setting, plan, _ = prepare(spec_for(case.family), case.job, card_of(case.card))

    @cache
    def simulate(micro: int, steps: int) -> StepRecord:
        batch = {"micro_batch_size": micro, "gradient_accumulation_steps": max(1, steps)}
        at = replace(setting, job=case.job.model_copy(update=batch))
        return simulate_step(at, steps) if steps else simulate_evaluation(at)

    return BatchScaling(setting, plan), simulate


def contents(record: StepRecord) -> dict[str, Any]:
    """All that a record has; weights are compared by their fields."""
    weights = [{field.name: getattr(weight, field.name) for field in fields(weight)} for weight in record.weights]
    return {**record._asdict(), "weights": weights}


def operations(record: StepRecord) -> tuple[Any, ...]:
    """What a record does, without the sizes of its storages and the work of its kernels."""
    alike = [info[1:4] + info[5:] + (len(info.shape),) for info in record.storages]
    work = [kernel[2:5] for kernel in record.kernels]
    gradients = [(weight.gradient, weight.is_reached) for weight in record.weights]
    sections = list(record.sections)
    return record.events.tobytes(), sections, alike, work, gradients, record.kept, record.transient_gradients


def numbers(record: StepRecord) -> list[int]:
    """Every size and amount of work that may grow with the micro-batch."""
    sizes = [number for info in record.storages for number in (info.num_bytes, *info.shape)]
    return sizes + [number for kernel in record.kernels for number in (*kernel[:2], kernel.results)]


def lie_on_a_line(records: dict[int, StepRecord]) -> bool:
    """Whether three records do the same, on sizes that grow evenly."""
    (first, low), (middle, between), (last, high) = records.items()
    if not operations(low) == operations(between) == operations(high):
        return False
    return all(
        (b - a) * (last - first) == (c - a) * (middle - first)
        for a, b, c in zip(numbers(low), numbers(between), numbers(high), strict=True)
    )


def assert_is(step: StepAt, record: StepRecord) -> None:
    """A scaled step is the one that was simulated."""
    assert do_the_same(step.record, record)
    assert operations(step.record) == operations(record)
    assert [step.storage(number) for number in range(len(record.storages))] == list(record.storages)
    assert list(step.sizes) == [info.num_bytes for info in record.storages]
    assert [step.kernels[number] for number in step.kernel_of] == list(record.kernels)


def check_lines(case: Case, order: tuple[int, ...], unseen: Sequence[int] = UNSEEN) -> None:
    """Steps and evaluations at micro-batches that were not simulated; `order`: which steps are asked for first."""
    scaling, simulate = simulations(case)
    simulated: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:

        def step(setting: Any, steps: int) -> StepRecord:
            simulated.append((setting.job.micro_batch_size, steps))
            return simulate(*simulated[-1])

        patch.setattr(batch_scaling, "simulate_step", step)
        patch.setattr(batch_scaling, "simulate_evaluation", lambda setting: step(setting, 0))
        for steps, micro in product(order, unseen):
            linear = lie_on_a_line({at: simulate(at, steps) for at in (FIRST, BETWEEN, LEAST_BEYOND)})
            found = scaling.step(micro, steps) if steps else scaling.evaluation(micro)
            is_simulated = bool({(micro, steps), (micro, min(1, steps))} & {*simulated})
            assert is_simulated is not linear, (case.name, micro, steps)
            assert_is(found, simulate(micro, steps))


def check_second_micro_step(case: Case) -> None:
    """Written from the first, it is what is simulated, unless it does not repeat the first.

    A plain loop makes new batches, and a gradient that is used behind its weight is freed after that.
    """
    _, simulate = simulations(case)
    micro = case.job.micro_batch_size
    job = case.job.model_copy(update={"gradient_accumulation_steps": 2})
    waiting = waiting_batches(prepare(spec_for(case.family), job, card_of(case.card))[0])
    one, two = simulate(micro, 1), simulate(micro, 2)
    assert (one.taken is None) == (job.loop == "plain"), case.name
    if one.taken is None or any(taken.is_used for taken in one.taken):
        with pytest.raises(ValueError, match="does not repeat the first"):
            with_second_micro_step(one, waiting)
    else:
        written = contents(with_second_micro_step(one, waiting))
        for name, value in contents(two).items():
            assert name == "taken" or written[name] == value, (case.name, name)


@pytest.mark.parametrize("family", SAMPLE)
def test_a_line_is_what_is_simulated(family: str) -> None:
    number = SAMPLE.index(family)
    check_lines(one_of(family), (2, 1, 0) if number % 2 else (1, 2, 0), (UNSEEN[number % 3],))


@pytest.mark.parametrize("number", range(3))
def test_lines_of_rarer_settings(number: int) -> None:
    for case in rarer()[number::3]:
        check_lines(case, (1, 2, 0), (UNSEEN[number],))


@pytest.mark.full
@pytest.mark.parametrize("family", GROUPS)
def test_lines_of_every_family(family: str) -> None:
    number = list(GROUPS).index(family)
    for case in cases_of(family)[number % 24 :: 24]:
        check_lines(case, (1, 2, 0) if number % 2 else (0, 2, 1), (UNSEEN[number % 3],))


@pytest.mark.parametrize("family", SAMPLE)
def test_the_second_micro_step_is_what_is_simulated(family: str) -> None:
    check_second_micro_step(one_of(family))


def test_the_second_micro_step_of_rarer_settings() -> None:
    for case in rarer():
        check_second_micro_step(case)


@pytest.mark.full
@pytest.mark.parametrize("family", GROUPS)
def test_second_micro_steps_of_every_family(family: str) -> None:
    for case in cases_of(family)[list(GROUPS).index(family) % 6 :: 6]:
        check_second_micro_step(case)


def test_a_gradient_that_is_used_behind_its_weight() -> None:
    """With one pair SigLIP's bias takes over the gradient that the product before it reads, a view of one number."""
    case = next(case for case in cases_of("siglip") if case.job.method == "full" and case.job.loop == "trainer")
    scaling, simulate = simulations(case)
    used = {micro: [taken for taken in simulate(micro, 1).taken or () if taken.is_used] for micro in (1, 2)}
    assert [taken.info.module for taken in used[1] if taken.info is not None] == ["loss"]
    assert not used[2]
    for micro in (1, 2):
        assert_is(scaling.step(micro, 2), simulate(micro, 2))


@pytest.mark.parametrize(("family", "setting"), [("vit", "full-fp32"), ("glm4v", "full-tower")])
def test_gradients_that_are_copied(family: str, setting: str) -> None:
    """A second micro-step adds them to the copies that the first has made."""
    cases = [case for case in cases_of(family) if case.setting == setting and case.job.loop == "trainer"]
    copied = 0
    for case in cases[:2]:
        check_second_micro_step(case)
        _, simulate = simulations(case)
        copied += sum(taken.is_copied for taken in simulate(case.job.micro_batch_size, 1).taken or ())
    assert copied > 0


def test_the_sample_has_all_that_matters() -> None:
    """Loops, attentions, methods and losses; texts, images and others."""
    cases = [*map(one_of, SAMPLE), *rarer()]
    assert {case.job.loop for case in cases} == {"plain", "trainer"}
    assert {case.job.attention for case in cases} == {"sdpa", "eager", "flash"}
    assert {case.job.checkpointing for case in cases} == {"none", "full"}
    assert {case.job.method for case in cases} == {"lora", "dora", "full"}
    assert {case.job.loss for case in cases} > {"standard", "liger"}
    assert max(case.job.gradient_accumulation_steps for case in cases) > 1
    assert len({*SEEING, *OTHERS} & {*SAMPLE}) > 8


@pytest.mark.parametrize("family", ["llava_next", "llava_onevision", "mistral3"])
def test_no_line_where_operations_grow(family: str) -> None:
    """Each image takes operations of its own."""
    case = Case(family, "lora", seeing_job(family, images=1, image_size=(500, 400)))
    scaling, simulate = simulations(case)
    low, between = simulate(FIRST, 1), simulate(BETWEEN, 1)
    assert len(between.events) > len(low.events)
    assert not do_the_same(low, between)
    with pytest.raises(ValueError, match="other operations"):
        LinearRecord(FIRST, low, BETWEEN, between)
    for steps in (1, 2):
        assert_is(scaling.step(5, steps), simulate(5, steps))


def records_of(job: Job) -> Simulate:
    return simulations(Case("llama", "rarer", job))[1]


@pytest.mark.parametrize("family", ["pixtral", "clip", "siglip"])
def test_no_line_where_sizes_are_quadratic(family: str) -> None:
    """Patches of all images attend to each other's mask; a text is compared with every image."""
    case = cases_of(family)[0]
    scaling, simulate = simulations(case)
    low, between = simulate(FIRST, 1), simulate(BETWEEN, 1)
    assert do_the_same(low, between)
    assert not lie_on_a_line({FIRST: low, BETWEEN: between, LEAST_BEYOND: simulate(LEAST_BEYOND, 1)})
    assert_is(scaling.step(5, 1), simulate(5, 1))


def test_no_line_where_sizes_do_not_grow_evenly() -> None:
    simulate = records_of(Job(sequence_length=256))
    low, high = simulate(2, 1), simulate(6, 1)
    line = LinearRecord(2, low, 6, high)
    assert line.agrees(4, simulate(4, 1))
    assert not line.agrees(4, simulate(5, 1))
    assert not line.agrees(4, simulate(4, 2))

    def changed(place: int, **values: Any) -> StepRecord:
        storages = list(high.storages)
        storages[place] = storages[place]._replace(**values)
        return high._replace(storages=tuple(storages))

    one = max(range(len(high.storages)), key=lambda number: high.storages[number].num_bytes)
    info = high.storages[one]
    for other in (
        changed(one, num_bytes=info.num_bytes + 2),
        changed(one, shape=(*info.shape[:-1], info.shape[-1] + 1)),
        changed(one, shape=(*info.shape, 1)),
        changed(one, dtype="fp64"),
        changed(one, what="another"),
        changed(one, card=1),
        high._replace(
            kernels=(high.kernels[0]._replace(moved_bytes=high.kernels[0].moved_bytes + 1), *high.kernels[1:])
        ),
        high._replace(kernels=(high.kernels[0]._replace(launches=99), *high.kernels[1:])),
    ):
        with pytest.raises(ValueError, match="does not grow evenly"):
            LinearRecord(2, low, 6, other)
    for other in (
        high._replace(kept=high.kept - {min(high.kept)}),
        high._replace(kernels=high.kernels[:-1]),
        high._replace(transient_gradients=frozenset({0})),
        high._replace(waiting=range(1)),
        high._replace(weights=[replace(weight, is_reached=not weight.is_reached) for weight in high.weights]),
    ):
        with pytest.raises(ValueError, match="other operations"):
            LinearRecord(2, low, 6, other)


def test_a_line_is_longer_when_more_is_asked_for() -> None:
    scaling, simulate = simulations(Case("llama", "rarer", Job(sequence_length=256)))
    for micro in (LEAST_BEYOND, LEAST_BEYOND + 1, 1000):
        assert_is(scaling.step(micro, 2), simulate(micro, 2))
        assert_is(scaling.step(micro, 1), simulate(micro, 1))
