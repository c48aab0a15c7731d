"""What published training speeds teach: ``vramplan/step_time/rates.json``, and the speeds of the accuracy page.

    python -m tests.learn_times           learn, compare with runs that were left out, write both
    python -m tests.learn_times --show    learn and print, write nothing

Rates are physical: the share of its peak that a GPU reaches in matrix products, the time of a launch. Each is learned
for all GPUs or for a generation, never for a run. Runs of which something is not known, such as a framework's own
kernels, have a factor of their own for each publication: they tell how fast GPUs are relative to each other, not how
fast PyTorch is on them. Needs numpy.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

import numpy as np

from tests.helpers import ROOT
from vramplan.analytic.job_steps import JobSteps, phases, state_shards, zero3_gathers
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, VramplanError
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.measurements.speed import alike, compare_times
from vramplan.measurements.timed_run import TimedRun, load_times
from vramplan.memory.optimizers import CLIPPING_PASSES, optimizer_of
from vramplan.planner.job_defaults import complete_job
from vramplan.render.speed import markdown
from vramplan.step_time.communication import Communication, PhaseSums, host_optimizer_seconds, phase_sums
from vramplan.step_time.kernels import BACKWARD, DEQUANTIZE, MATMUL, Kernel, computed_flops, peak_flops
from vramplan.step_time.rates import forget, generation_name

PUBLISHED = ROOT / "tests" / "published_times.jsonl"
PAGE = ROOT / "docs" / "accuracy.md"
LEARNED = ROOT / "vramplan" / "step_time" / "rates.json"
FOLDS = 5
COVERAGE = 0.9
LEAST_RUNS = 8
"""Runs of a generation from which more than the rate of matrix products is learned."""
LEAST_COVERED = 20
"""Runs of a generation, with all settings known, from which its own band is taken."""
PRIORS = {
    "matmul": (0.72, 0.3),
    "attention_ratio": (1.3, 0.15),
    "attention_backward": (0.5, 0.3),
    "matmul_results": (1e6, 0.5),
    "bandwidth": (0.87, 0.08),
    "dequantize": (0.55, 0.3),
    "launch_seconds": (1.2e-5, 0.3),
    "zero3_seconds": (2e-4, 0.5),
    "step_seconds": (0.03, 0.7),
}
"""Value of each rate before any run, and the standard deviation of its logarithm.

matmul and bandwidth: what cuBLAS and streaming kernels reach on an A100 (NVIDIA's matrix multiplication guide). The
forward of FlashAttention-2 reaches 1.3 times the share of its backward (arXiv 2307.08691, figures 4 to 6).
"""
OF_GENERATION = ("matmul", "attention_backward", "bandwidth")
FIXED = {"matmul_depth": 64.0, "kernel_seconds": 2e-6}
"""Half of a tile of 128 by 128, and the pause between kernels of one stream: too small to be learned here."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run, with all that its time is computed from."""

    run: TimedRun
    generation: str
    work: np.ndarray
    """Rows of (seconds at the peak, seconds at the bandwidth, launches, kind, depth, results of a launch, runs,
    whether in the backward)."""
    job: Any
    gpu: Any
    sends: tuple[tuple[float, ...], ...]
    """Communication: (whether in the backward, times in a step, and the fields of PhaseSums)."""
    host_seconds: float
    """Of the optimizer's step on the host; 0 if it runs on the GPU."""
    optimizer_seconds: float
    """At the memory bandwidth."""
    optimizer_launches: float
    hooks: int
    """Weights that ZeRO-3 gathers in a micro-step."""

    @property
    def is_complete(self) -> bool:
        return not self.run.unknown


KINDS = {MATMUL: 1, DEQUANTIZE: 4}


def kind_of(kernel: Any) -> int:
    """0 elementwise, 1 matrix product, 2 and 3 forward and backward of attention, 4 dequantization."""
    if not kernel.flops:
        return KINDS.get(kernel.kind, 0)
    return KINDS.get(kernel.kind) or (3 if kernel.kind.endswith(BACKWARD) else 2)


def cases_of(runs: Iterable[TimedRun]) -> list[Case]:
    """All runs that can be estimated; those that differ in their batch alone share simulated steps."""
    cases: list[Case] = []
    steps: JobSteps | None = None
    key = ""
    for run in sorted(runs, key=alike):
        spec, gpu = run.spec, run.card
        try:
            job = complete_job(spec, gpu, run.settings)
            if steps is None or alike(run) != key:
                steps, key = JobSteps(spec, job, gpu), alike(run)
            cases.append(case_of(run, steps, job, gpu))
        except VramplanError as error:
            print(f"{run.id}: {error}")
    return cases


def case_of(run: TimedRun, steps: JobSteps, job: Job, gpu: Gpu) -> Case:
    """All that a run's time is computed from."""
    at = steps.scaling.step(job.micro_batch_size, job.gradient_accumulation_steps)
    shape, weights = steps.shape(at, job), steps.weights
    counts: Counter[tuple[Kernel, int]] = Counter()
    for in_backward, phase in enumerate(phases(at, shape)):
        for kernel, runs in phase:
            counts[kernel, in_backward] += runs
    work = [(*times_of(kernel, gpu), runs, in_backward) for (kernel, in_backward), runs in counts.items()]
    communication = shape.run.layout(shape.run.gpus[0]).communication
    record = optimizer_of(job.optimizer)
    passes = record.state_passes + (CLIPPING_PASSES if job.loop == "trainer" else 0)
    return Case(
        run,
        generation_name(gpu),
        np.array(work),
        job,
        gpu,
        sends_of(communication, job, gpu),
        host_optimizer_seconds(communication, job) if communication.updated_on_host else 0.0,
        passes * weights.trained_bytes / state_shards(job) / gpu.bandwidth_bytes_per_second,
        record.launches_per_weight * weights.num_trained,
        zero3_gathers(job, weights),
    )


def sends_of(communication: Communication, job: Job, gpu: Gpu) -> tuple[tuple[float, ...], ...]:
    """The column :attr:`Case.sends` of a job."""
    sends = []
    for in_backward, names in ((0, ("forward", "optimizer")), (1, ("backward",))):
        for phase in names:
            for is_last, times in ((False, job.gradient_accumulation_steps - 1), (True, 1)):
                transfers = [one for one in communication.transfers if (one.phase, one.is_last) == (phase, is_last)]
                sums = phase_sums(transfers, job, gpu)
                if sums is None:
                    raise ConfigError("the rate of a link is not known")
                if phase == "optimizer":  # nothing runs beside
                    sums = PhaseSums(sums.alone_seconds + sums.beside_seconds, 0.0, 0.0)
                if times and any(sums):
                    sends.append((in_backward, times, *sums))
    return tuple(sends)


def times_of(kernel: Kernel, gpu: Gpu) -> tuple[float, ...]:
    """A kernel's columns in :attr:`Case.work`, without the last two."""
    results, moved_seconds = max(1, kernel.results), kernel.moved_bytes / gpu.bandwidth_bytes_per_second
    depth = kernel.flops / (2 * results) or 1
    at_peak = computed_flops(kernel) / peak_flops(kernel, gpu)
    return at_peak, moved_seconds, kernel.launches, kind_of(kernel), depth, results / max(1, kernel.launches)


class Table:
    """The kernels of many cases in one array, to predict all at once."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        self.count = len(cases)
        self.case_of = np.concatenate([np.full(len(case.work), number) for number, case in enumerate(cases)])
        columns = np.concatenate([case.work for case in cases]).T
        self.flops, self.moved, self.launches, kind, self.depth, self.results, self.runs, self.backward = columns
        self.is_kind = [kind == number for number in range(5)]
        self.generations = sorted({case.generation for case in cases})
        numbers = np.array([self.generations.index(case.generation) for case in cases])
        self.generation_of, self.kernel_generation = numbers, numbers[self.case_of]
        self.measured = np.log([case.run.seconds_per_step for case in cases])
        self.steps = np.array([case.job.gradient_accumulation_steps for case in cases])
        self.total_launches = np.bincount(self.case_of, self.runs * self.launches, self.count)
        self.hooks = np.array([case.hooks for case in cases])
        self.optimizer = np.array([case.optimizer_seconds for case in cases])
        self.optimizer_launches = np.array([case.optimizer_launches for case in cases])
        self.host_seconds = np.array([case.host_seconds for case in cases])
        sends = [(number, *send) for number, case in enumerate(cases) for send in case.sends]
        self.sends = np.array(sends).reshape(-1, 6).T
        groups = [case.run.group for case in cases]
        self.weights = np.array([1 / math.sqrt(groups.count(group)) for group in groups])
        self.weights *= [1.0 if case.is_complete else 0.5 for case in cases]
        self.own_factor = [None if case.is_complete else own_factor(case) for case in cases]

    def predict(self, rates: Learned) -> np.ndarray:
        """Logarithm of each case's seconds, as vramplan.step_time computes them."""

        def each(name: str, of: np.ndarray) -> np.ndarray:
            return np.array([rates.of(name, generation) for generation in self.generations])[of]

        kernels, runs = self.kernel_generation, self.generation_of
        backward = each("attention_backward", kernels)
        is_matmul, is_forward, is_backward, is_dequantize = self.is_kind[1:]
        share = np.where(is_backward, backward, np.where(is_forward, backward * rates.all["attention_ratio"], 0))
        share = np.where(is_backward | is_forward, share, each("matmul", kernels))
        arithmetic = self.flops / share
        idle = np.minimum(1.0, rates.all["matmul_results"] / self.results)
        edges = (1 + FIXED["matmul_depth"] / self.depth) * (1 + idle)
        arithmetic = np.where(is_matmul, arithmetic * edges, arithmetic)
        traffic = self.moved / np.where(is_dequantize, rates.all["dequantize"], each("bandwidth", kernels))
        seconds = np.maximum(arithmetic, traffic) + self.launches * FIXED["kernel_seconds"]
        parts = [
            np.bincount(self.case_of, seconds * self.runs * (self.backward == part), self.count) for part in (0, 1)
        ]
        on_gpu = parts[0] + parts[1]
        on_host = self.total_launches * rates.all["launch_seconds"] + self.hooks * rates.all["zero3_seconds"]
        slower = np.maximum(1.0, on_host / on_gpu)
        update = np.maximum(
            self.optimizer / each("bandwidth", runs), self.optimizer_launches * rates.all["launch_seconds"]
        )
        update += rates.all["step_seconds"]
        update = np.where(self.host_seconds > 0, self.host_seconds, update)
        number, in_backward, times, alone, beside, taken = self.sends
        number = number.astype(int)
        computed = np.where(in_backward > 0, parts[1][number], parts[0][number]) * slower[number]
        overlap = np.minimum(1.0, computed / np.maximum(beside, 1e-9))
        added = alone + np.maximum(0, beside - computed) + overlap * taken
        added = np.bincount(number, times * added, self.count)
        return np.log(self.steps * on_gpu * slower + update + added)


def own_factor(case: Case) -> str:
    """Runs of one publication with the same unknown settings on one kind of GPU's software."""
    return f"{case.run.group}: {'; '.join(case.run.unknown)}"


class Learned:
    """Rates for all GPUs, and those of generations."""

    def __init__(self) -> None:
        self.all = {name: value for name, (value, _) in PRIORS.items()}
        self.generations: dict[str, dict[str, float]] = defaultdict(dict)
        self.factors: dict[str, float] = {}
        """Logarithm of estimate over measurement of runs with something unknown."""

    def of(self, name: str, generation: str) -> float:
        """A rate of a generation."""
        return self.generations.get(generation, {}).get(name, self.all[name])

    def residuals(self, table: Table) -> np.ndarray:
        """Logarithm of estimate over measurement of each case, its own factor taken out."""
        factors = [self.factors.get(name, 0.0) if name else 0.0 for name in table.own_factor]
        return table.predict(self) - table.measured - np.array(factors)


def learn(cases: Sequence[Case], start: Learned | None = None, sweeps: int = 4) -> Learned:
    """Rates that the cases are met best by: one rate after the other, over and over."""
    table, learned = Table(cases), Learned()
    if start is not None:
        learned.all = dict(start.all)
        learned.generations = defaultdict(dict, {name: dict(own) for name, own in start.generations.items()})
    counts = {name: sum(case.generation == name for case in cases) for name in table.generations}
    learned.generations = defaultdict(dict, {name: learned.generations[name] for name in counts})

    def cost() -> float:
        errors = learned.residuals(table)
        loss = float((table.weights * np.sqrt(errors**2 + 0.02**2)).sum() / table.weights.sum())
        values = [(name, learned.all[name]) for name in PRIORS]
        values += [(name, value) for own in learned.generations.values() for name, value in own.items()]
        away = sum((math.log(value / PRIORS[name][0]) / PRIORS[name][1]) ** 2 for name, value in values)
        return loss + 0.0005 * away

    for sweep in range(sweeps):
        set_factors(learned, table)
        width = math.log(2.0) / 2**sweep
        for name in PRIORS:
            minimize(learned.all, name, cost, width)
        for generation, count in counts.items():
            for name in OF_GENERATION if count >= LEAST_RUNS else OF_GENERATION[:1]:
                learned.generations[generation].setdefault(name, learned.of(name, generation))
                minimize(learned.generations[generation], name, cost, width)
    set_factors(learned, table)
    return learned


def set_factors(learned: Learned, table: Table) -> None:
    """Each factor as the median of its runs."""
    learned.factors = {}
    errors = learned.residuals(table)
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, error in zip(table.own_factor, errors, strict=True):
        if name is not None:
            by_name[name].append(float(error))
    learned.factors = {name: float(np.median(values)) for name, values in by_name.items()}


def minimize(values: dict[str, float], name: str, cost: Callable[[], float], width: float) -> None:
    """Set one value to where the cost is least, by golden-section search within a factor of e**width."""
    golden = (math.sqrt(5) - 1) / 2
    center = math.log(values[name])
    low, high = center - width, center + width

    def at(point: float) -> float:
        values[name] = math.exp(point)
        return cost()

    first, second = high - golden * (high - low), low + golden * (high - low)
    at_first, at_second = at(first), at(second)
    best = (at(center), center)
    while high - low > 0.01:
        if at_first < at_second:
            high, second, at_second = second, first, at_first
            first = high - golden * (high - low)
            at_first = at(first)
        else:
            low, first, at_first = first, second, at_second
            second = low + golden * (high - low)
            at_second = at(second)
    values[name] = math.exp(min(best, (at((low + high) / 2), (low + high) / 2))[1])


def left_out_errors(cases: Sequence[Case], whole: Learned, groups: Sequence[set[str]]) -> dict[str, float]:
    """Logarithm of estimate over measurement of every run whose settings are all known, learned without its set."""
    errors: dict[str, float] = {}
    for names in groups:
        out = [case for case in cases if case.run.id in names and case.is_complete]
        if not out:
            continue
        learned = learn([case for case in cases if case.run.id not in names], whole, sweeps=2)
        table = Table(out)
        residuals = table.predict(learned) - table.measured
        errors |= {case.run.id: float(error) for case, error in zip(out, residuals, strict=True)}
    return errors


def unseen_errors(cases: Sequence[Case]) -> list[float]:
    """The same for generations of which no run was learned from."""
    errors: list[float] = []
    for generation in sorted({case.generation for case in cases if case.is_complete}):
        learned = learn([case for case in cases if case.generation != generation], sweeps=3)
        learned.generations[generation]["matmul"] = by_power(learned, cases, generation)
        table = Table([case for case in cases if case.generation == generation and case.is_complete])
        errors += map(float, table.predict(learned) - table.measured)
    return errors


def watts_per_teraflop(gpu: Gpu) -> float:
    """Power limit over the dense half-precision peak."""
    assert gpu.power_watts is not None
    return gpu.power_watts / (gpu.flops_per_second["fp16"] / 1e12)


def power_law(learned: Learned, cases: Sequence[Case]) -> tuple[float, float]:
    """(share of the peak at one watt for a TFLOP/s, its exponent) through the rates of the generations."""
    points = []
    for generation, own in learned.generations.items():
        watts = [watts_per_teraflop(case.gpu) for case in cases if case.generation == generation]
        if watts and "matmul" in own:
            points.append((math.log(float(np.median(watts))), math.log(own["matmul"])))
    exponent, intercept = np.polyfit(*zip(*points, strict=True), 1)
    return float(math.exp(intercept)), float(exponent)


def by_power(learned: Learned, cases: Sequence[Case], generation: str) -> float:
    """The share of the peak that a generation reaches in matrix products, by its power limit."""
    factor, exponent = power_law(learned, cases)
    watts = [watts_per_teraflop(case.gpu) for case in cases if case.generation == generation]
    return min(1.0, factor * float(np.median(watts)) ** exponent)


def covering(errors: Iterable[float]) -> float:
    """The share that `COVERAGE` of the estimates stay within."""
    return round(math.exp(float(np.quantile(np.abs(list(errors)), COVERAGE))) - 1, 3)


def as_rates(
    cases: Sequence[Case], learned: Learned, left_out: dict[str, float], unseen: list[float]
) -> dict[str, Any]:
    """The content of rates.json."""
    factor, exponent = power_law(learned, cases)
    generations = {}
    for name, own in sorted(learned.generations.items()):
        runs = [case for case in cases if case.generation == name]
        known = [case.run for case in runs if case.run.id in left_out]
        # a generation with few runs, or those of one publication: as far off as one that was not seen
        is_enough = len(known) >= LEAST_COVERED and len({run.group for run in known}) > 1
        relative_error = covering([left_out[run.id] for run in known] if is_enough else unseen)
        values = {rate: float(f"{value:.3g}") for rate, value in own.items()}
        if "attention_backward" in values:
            values["attention"] = float(f"{values['attention_backward'] * learned.all['attention_ratio']:.3g}")
        generations[name] = {**values, "runs": len(runs), "relative_error": relative_error}
    shared = {rate: float(f"{value:.3g}") for rate, value in {**learned.all, **FIXED}.items()}
    shared["attention"] = float(f"{shared.pop('attention_ratio') * shared['attention_backward']:.3g}")
    power = {"power_factor": float(f"{factor:.3g}"), "power_exponent": float(f"{exponent:.3g}")}
    return {"all": shared, **power, "unseen_error": covering(unseen), "generations": generations}


def in_page(text: str, cases: Sequence[Case], left_out: dict[str, float], by_source: dict[str, float]) -> str:
    """The accuracy page with its tables of speeds updated."""
    place = re.compile(r"(<!-- accuracy: left out -->\n).*?(<!-- end -->)", re.DOTALL)
    text, replaced = place.subn(lambda match: match[1] + left_out_table(cases, left_out, by_source) + match[2], text)
    assert replaced == 1
    place = re.compile(r"(<!-- accuracy: times -->\n).*?(<!-- end -->)", re.DOTALL)
    text, replaced = place.subn(lambda match: match[1] + markdown(compare_times(PUBLISHED)) + match[2], text)
    assert replaced == 1
    return text


def left_out_table(cases: Sequence[Case], left_out: dict[str, float], by_source: dict[str, float]) -> str:
    """Errors of runs that were left out while learning, by publication."""
    lines = ["| source | runs | a fifth of all runs left out: median | P95 | its source left out: median | P95 |"]
    lines.append("|---|---|---|---|---|---|")
    sources = sorted({case.run.group for case in cases if case.is_complete})
    for source in (*sources, None):
        ids = [case.run.id for case in cases if case.is_complete and source in (None, case.run.group)]
        columns = [figure for errors in (left_out, by_source) for figure in figures([errors[id] for id in ids])]
        lines.append(f"| {source or 'all'} | {len(ids)} | {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def figures(errors: Sequence[float]) -> tuple[str, str]:
    """Median and 95th percentile (nearest rank) of the absolute errors, in percent."""
    absolute = sorted(abs(math.exp(error) - 1) for error in errors)
    return f"{median(absolute):.1%}", f"{absolute[-(-95 * len(absolute) // 100) - 1]:.1%}"


def main() -> None:
    """Learn, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="write nothing")
    shows = parser.parse_args().show
    cases = cases_of(load_times(PUBLISHED))
    whole = learn(cases)
    ids = sorted(case.run.id for case in cases)
    left_out = left_out_errors(cases, whole, [set(ids[number::FOLDS]) for number in range(FOLDS)])
    sources = sorted({case.run.group for case in cases if case.is_complete})
    of_source = [{case.run.id for case in cases if case.run.group == source} for source in sources]
    by_source = left_out_errors(cases, whole, of_source)
    rates = as_rates(cases, whole, left_out, unseen_errors(cases))
    print(json.dumps({**rates, "factors": whole.factors}, indent=1))
    print(left_out_table(cases, left_out, by_source))
    if not shows:
        LEARNED.write_text(json.dumps(rates, indent=1) + "\n")
        forget()
        PAGE.write_text(in_page(PAGE.read_text(), cases, left_out, by_source))


if __name__ == "__main__":
    main()
