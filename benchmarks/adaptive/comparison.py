"""Policies on a small language model against fixed batches whose learning rates were tuned."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.adaptive.language_model import documentation, sources, split, validator
from benchmarks.adaptive.training import FIRST_BATCH, PARTS, Run, rungs, train
from vramplan.adaptive.controller import Controller
from vramplan.adaptive.coupling import Coupling
from vramplan.adaptive.policies.by_name import STEPS, Settings, policy_by_name
from vramplan.adaptive.policies.constant import Constant
from vramplan.adaptive.record import record_line

SEEDS = (0, 1, 2)
AROUND = (0.5, 1.0, 2.0)
"""Learning rates that are tried at other batches than the first, times its best by the square root rule."""
RECORDED_BATCH, RECORD_EVERY = 32, 4
"""The run whose norms are kept, for `vramplan adapt simulate`."""
ASKED = 20
"""Times that the plateau rule is asked: a run without epochs, as long as 40 to 60 of them."""


class Task(NamedTuple):
    """What is trained."""

    samples: int
    """Of a run, 64 characters each."""
    batches: tuple[int, ...]
    first_rates: tuple[float, ...]
    """Learning rates that are tried at the first batch."""
    texts: Callable[[], list[str]]
    begins_with: str | None = None
    """The task whose run at its first batch gives the weights to begin with, seed by seed."""


TASKS = {
    "from scratch": Task(20_480, (8, 16, 32, 64, 128, 256), (0.001, 0.002, 0.004, 0.008), sources),
    "fine-tuning": Task(10_240, (8, 16, 32, 64, 128), (0.001, 0.002, 0.004), documentation, "from scratch"),
}
PRETRAINING_RATE = 0.002
"""The best of the first task's first batch."""


class Candidate(NamedTuple):
    """A policy in the comparison."""

    title: str
    policy: str
    coupling: str = "sqrt"
    share: float = 1.0
    preconditioned: bool = False


CANDIDATES = (
    Candidate("noise scale", "noise-scale"),
    Candidate("noise scale, a half", "noise-scale", share=0.5),
    Candidate("noise scale, a quarter", "noise-scale", share=0.25),
    Candidate("noise scale of Adam's update", "noise-scale", preconditioned=True),
    Candidate("noise scale, rate unchanged", "noise-scale", coupling="none"),
    Candidate("norm test, eta 0.5", "norm-test"),
    Candidate("Seesaw", "seesaw"),
    Candidate("fixed schedule", "schedule"),
    Candidate("plateau rule as published, rate unchanged", "plateau", coupling="none"),
    Candidate("plateau rule, square root rate", "plateau"),
)


def controller_of(candidate: Candidate, task: Task) -> Controller:
    """A new controller; half-life and dwell are the command line's defaults, fixed before any run."""
    first, largest = task.batches[0], task.batches[-1]
    settings = Settings(
        half_life=STEPS * first,
        interval=task.samples // ASKED,
        points=((0, first), *((task.samples // part, first * 16 // part) for part in (8, 4, 2))),
        smallest=first,
        largest=largest,
        share=candidate.share,
    )
    # the plateau rule grows by tenths: its ladder has every even batch
    batches = range(first, largest + 1, PARTS) if candidate.policy == "plateau" else task.batches
    policy = policy_by_name(candidate.policy, settings)
    return Controller(rungs(batches), policy, Coupling(candidate.coupling), dwell=STEPS * first)


class Runs:
    """All runs of a task, one after the other, on one thread."""

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(1)
        self.task = task
        self.source, held_out = split(task.texts())
        self.validation = validator(held_out)
        self.starts: dict[int, Any] = {}

    def run(self, controller: Controller, rate: float, seed: int, **options: Any) -> Run:
        """A run from the task's own weights."""
        if self.task.begins_with is not None and seed not in self.starts:
            before = Runs(TASKS[self.task.begins_with])
            self.starts[seed] = before.fixed(before.task.batches[0], PRETRAINING_RATE, seed).weights
        return train(
            self.source, self.task.samples, self.validation, controller, rate, seed, self.starts.get(seed), **options
        )

    def fixed(self, batch: int, rate: float, seed: int, record_every: int = 0) -> Run:
        """A run at one batch."""
        controller = Controller(rungs([batch]), Constant(), Coupling("none"), base_batch=FIRST_BATCH)
        return self.run(controller, rate, seed, record_every=record_every)

    def all(self) -> Iterator[dict[str, Any]]:
        """Every run."""
        first = self.task.batches[0]
        first_rate = yield from self._tuned(first, self.task.first_rates)
        for batch in self.task.batches[1:]:
            by_rule = first_rate * (batch / first) ** 0.5
            yield from self._tuned(batch, tuple(factor * by_rule for factor in AROUND))
        for candidate in CANDIDATES:
            for seed in SEEDS:
                controller = controller_of(candidate, self.task)
                run = self.run(controller, first_rate, seed, preconditioned=candidate.preconditioned)
                yield _result(candidate.title, "policy", seed, first_rate, run)
        rate = first_rate * (RECORDED_BATCH / first) ** 0.5
        yield {"kind": "record", "record": self.fixed(RECORDED_BATCH, rate, SEEDS[0], RECORD_EVERY).record}

    def _tuned(self, batch: int, rates: tuple[float, ...]) -> Any:
        """A fixed batch at each rate with one seed, and at the best rate with all; the best rate."""
        title, by_rate = f"fixed {batch}", {}
        waiting = list(rates)
        while waiting:
            rate = waiting.pop(0)
            by_rate[rate] = run = self.fixed(batch, rate, SEEDS[0])
            yield _result(title, "tuning", SEEDS[0], rate, run)
            best = min(by_rate, key=lambda rate: by_rate[rate].loss)
            if not waiting and best in (min(by_rate), max(by_rate)):  # the best of all may lie beyond
                waiting.append(2 * best if best == max(by_rate) else best / 2)
        yield _result(title, "fixed", SEEDS[0], best, by_rate[best])
        for seed in SEEDS[1:]:
            yield _result(title, "fixed", seed, best, self.fixed(batch, best, seed))
        return best


def _result(title: str, kind: str, seed: int, rate: float, run: Run) -> dict[str, Any]:
    result = {"title": title, "kind": kind, "seed": seed, "rate": rate, "loss": run.loss, "steps": run.steps}
    if kind != "policy":
        return result
    decisions = [{key: value for key, value in each.items() if key != "values"} for each in run.decisions]
    return result | {"trajectory": run.trajectory, "decisions": decisions, "unused": run.unused}


def run_all(task: Task, results: Path, record: Path) -> None:
    """Do all runs; each result is written as it comes."""
    began = time.process_time()
    with results.open("w") as out:
        for result in Runs(task).all():
            if result["kind"] == "record":
                record.write_text("".join(f"{record_line(line)}\n" for line in result["record"]))
                continue
            print(json.dumps(result), file=out, flush=True)
            seconds = time.process_time() - began
            named = f"{result['title']}, {result['kind']}, seed {result['seed']}, rate {result['rate']:g}"
            print(f"{seconds:6.0f} s  {named}: {result['loss']:.4f} in {result['steps']} steps", file=sys.stderr)
