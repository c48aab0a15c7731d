"""The samples of each step: every one of them once in an epoch, whatever the batch, the ranks and the workers."""

from __future__ import annotations

import gc
import json
import multiprocessing
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import IterableDataset

from tests.adaptive_runs import constant, growing, samples
from vramplan.adaptive.controller import Controller, Observation
from vramplan.adaptive.step_loader import Step, StepLoader
from vramplan.adaptive.step_shares import shares
from vramplan.errors import ConfigError, UnsupportedError


def numbers(step: Step) -> list[int]:
    return [int(number) for one in step.micro_batches for number in one.batch["number"]]


def flat(steps: list[list[int]]) -> list[int]:
    return [number for step in steps for number in step]


def run(loader: StepLoader, controller: Controller, most: int = 10**9) -> list[list[int]]:
    """The samples of each step, telling the controller of each."""
    steps: list[list[int]] = []
    while not loader.is_finished:
        for step in loader:
            steps.append(numbers(step))
            total = sum(map(len, steps))
            controller.observe(Observation(step=len(steps), samples=total, tokens=0))
            if len(steps) == most:
                return steps
        if not loader.is_finished:
            loader.set_epoch(loader.epoch + 1)
    return steps


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}])
def test_each_sample_once_in_an_epoch_while_the_batch_grows(options: dict[str, Any]) -> None:
    controller = growing()
    steps = run(StepLoader(samples(41), controller, epochs=2, **options), controller)
    assert [len(step) for step in steps] == [4, 4, 4, 8, 8, 13, 16, 16, 9]
    epochs = [flat(steps[:6]), flat(steps[6:])]
    assert all(sorted(epoch) == list(range(41)) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_the_batch_does_not_change_the_order() -> None:
    grown, stays = growing(), constant()
    loaders = [StepLoader(samples(41), controller, seed=7) for controller in (grown, stays)]
    first, second = (flat(run(loader, loader.controller)) for loader in loaders)
    assert first == second


def test_ranks_share_a_step() -> None:
    """The micro-batches of two ranks are those of one, dealt in turns."""
    alone = growing()
    steps = run(StepLoader(samples(41), alone), alone)
    both = []
    for rank in range(2):
        controller = growing(2)
        loader = StepLoader(samples(41), controller, rank=rank, world_size=2)
        parts = []
        for step in loader:
            parts.append(numbers(step))
            controller.observe(Observation(step=len(parts), samples=sum(map(len, steps[: len(parts)])), tokens=0))
        both.append(parts)
    assert len(both[0]) == len(both[1]) == len(steps)
    for step, first, second in zip(steps, *both, strict=True):
        assert sorted(first + second) == sorted(step)
    assert abs(len(both[0][-1]) - len(both[1][-1])) <= 1


@pytest.mark.parametrize("count", range(1, 26))
def test_shares_of_a_step(count: int) -> None:
    for micro in (1, 2, 4):
        for ranks in (1, 2, 3, 5):
            spans = [shares(count, micro, rank, ranks) for rank in range(ranks)]
            covered = [number for own in spans for first, last in own for number in range(first, last)]
            assert sorted(covered) == list(range(count))
            totals = [sum(last - first for first, last in own) for own in spans]
            assert max(totals) - min(totals) <= 1
            assert all(0 < last - first <= micro for own in spans for first, last in own)


@pytest.mark.parametrize("stop", [1, 3, 4, 6, 7])
def test_a_saved_position_goes_on(stop: int) -> None:
    def loaders() -> tuple[StepLoader, Controller]:
        controller = growing()
        return StepLoader(samples(41), controller, epochs=2, seed=3), controller

    whole = run(*loaders())
    loader, controller = loaders()
    before = run(loader, controller, stop)
    saved = json.loads(json.dumps([loader.state_dict(), controller.state_dict()]))
    loader, controller = loaders()
    loader.load_state_dict(saved[0])
    controller.load_state_dict(saved[1])
    after = []
    while not loader.is_finished:
        for step in loader:
            after.append(numbers(step))
            total = sum(map(len, before + after))
            controller.observe(Observation(step=len(before + after), samples=total, tokens=0))
        if not loader.is_finished:
            loader.set_epoch(loader.epoch + 1)
    assert before + after == whole


def test_another_number_of_processes_goes_on() -> None:
    """Three steps on one GPU, the rest on two."""
    alone = growing()
    loader = StepLoader(samples(41), alone)
    before = run(loader, alone, 3)
    after = []
    for rank in range(2):
        controller = growing(2)
        controller.load_state_dict(alone.state_dict())
        later = StepLoader(samples(41), controller, rank=rank, world_size=2)
        later.load_state_dict(loader.state_dict())
        after += flat([numbers(step) for step in later])
    assert sorted(flat(before) + after) == list(range(41))


def test_the_schedule_is_counted_in_steps_of_the_base_batch() -> None:
    """A run that grows ends where one that stays ends: after as many samples, and base steps."""
    for controller in (constant(), growing()):
        loader = StepLoader(samples(41), controller, epochs=1.5)
        base_steps = total = 0
        while not loader.is_finished:
            for step in loader:
                base_steps += step.base_steps
                total += step.samples
                controller.observe(Observation(step=controller.state_dict()["step"] + 1, samples=total, tokens=0))
            if not loader.is_finished:
                loader.set_epoch(loader.epoch + 1)
        assert (base_steps, total) == (17, 41 + 24)  # 11 steps of 4 in an epoch, 16.5 in all
        assert step.is_last


def test_max_steps_and_drop_last() -> None:
    controller = growing()
    loader = StepLoader(samples(41), controller, max_steps=9)
    assert [len(step) for step in run(loader, controller)] == [4, 4, 4, 8, 8, 8]
    controller = growing()
    assert len(flat(run(StepLoader(samples(43), controller, drop_last=True), controller))) == 40


def test_the_last_part_of_a_step_again_in_smaller_micro_batches() -> None:
    loader = StepLoader(samples(9), constant())
    again = loader.cut_again([5, 1, 8], 2)
    assert [one.indices for one in again] == [(5, 1), (8,)]
    assert [one.batch["number"].tolist() for one in again] == [[5, 1], [8]]


def test_workers_end_with_the_epoch_and_with_an_abandoned_loader() -> None:
    """Without waiting for the timeout of 5 seconds that torch gives to workers in cyclic garbage."""
    controller = constant()
    loader = StepLoader(samples(8), controller, num_workers=1)
    steps = iter(loader)
    next(steps)
    assert len(multiprocessing.active_children()) == 1
    next(steps)  # the last
    assert not multiprocessing.active_children()
    loader = StepLoader(samples(8), controller, num_workers=1)
    gc.collect()
    gc.disable()
    try:
        steps = iter(loader)
        next(steps)
        assert len(multiprocessing.active_children()) == 1
        del steps, loader  # no cycle refers to it
        assert not multiprocessing.active_children()
    finally:
        gc.enable()


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(samples())


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="an iterable data set"):
        StepLoader(Stream(), constant())
    with pytest.raises(ConfigError, match="the data set has 0 samples"):
        StepLoader([], constant())
    with pytest.raises(ConfigError, match="the data set has 3 samples: none for a step of 4"):
        StepLoader(samples(3), constant(), drop_last=True)
    with pytest.raises(ConfigError, match="epochs=0: no step to take"):
        StepLoader(samples(), constant(), epochs=0)
    with pytest.raises(ConfigError, match="the ladder is for 2 GPUs, and 1 processes run"):
        StepLoader(samples(), constant(2))
    saved = StepLoader(samples(8), constant()).state_dict()
    with pytest.raises(ConfigError, match="one of 8 samples, and the data set has 9"):
        StepLoader(samples(9), constant()).load_state_dict(saved)
    with pytest.raises(ConfigError, match="of another order of the samples"):
        StepLoader(samples(8), constant(), seed=1).load_state_dict(saved)


def test_torchs_random_numbers_are_used_as_a_plain_loader_uses_them() -> None:
    """One number an epoch: dropout is the same as in a plain loop."""
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    for _ in DataLoader(samples(8), batch_size=2):  # type: ignore[arg-type]
        pass
    plain = torch.rand(1)
    torch.manual_seed(0)
    run(StepLoader(samples(8), (controller := constant())), controller)
    assert torch.rand(1) == plain
