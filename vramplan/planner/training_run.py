"""The whole run around a plan: its steps, its warm-up, its time and energy."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from vramplan.errors import ConfigError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import MAX_COUNT
from vramplan.planner.search_result import Plan, Run, RunLength
from vramplan.units import ceil_div

MOST_TOKENS = 10**15
"""Of a run; more is refused as a likely mistake."""
JOULES_PER_KILOWATT_HOUR = 3.6e6


def check_numbers(counts: Mapping[str, int | None], positive: Mapping[str, float | None]) -> None:
    """Refuse counts that are no whole numbers from 1 on, and other numbers that are not positive; None is not given.

    Raises:
        ConfigError: naming the setting.
    """
    for name, count in counts.items():
        is_whole = isinstance(count, int) and not isinstance(count, bool)
        if count is not None and not (is_whole and 0 < count <= MAX_COUNT):
            raise ConfigError(f"{setting(name, count)}: expected a whole number from 1 to {MAX_COUNT}")
    for name, number in positive.items():
        if number is not None and not 0 < number < 1e9:
            raise ConfigError(f"{setting(name, f'{number:g}')}: expected a positive number")


def check_length(samples: int | None, tokens_total: int | None, warmup_ratio: float | None = None) -> None:
    """Refuse a run's length that is given twice, or is none, and a warm-up that is no share of a run.

    Raises:
        ConfigError: naming the settings.
    """
    if samples is not None and tokens_total is not None:
        raise ConfigError(f"{setting('samples')} and {setting('tokens_total')} both give the length of the run")
    is_whole = isinstance(tokens_total, int) and not isinstance(tokens_total, bool)
    if tokens_total is not None and not (is_whole and 0 < tokens_total <= MOST_TOKENS):
        raise ConfigError(f"{setting('tokens_total', tokens_total)}: expected a whole number from 1 to {MOST_TOKENS:,}")
    if warmup_ratio is not None and not 0 <= warmup_ratio <= 1:
        raise ConfigError(f"{setting('warmup_ratio', f'{warmup_ratio:g}')}: expected a share from 0 to 1")
    if warmup_ratio is not None and samples is None and tokens_total is None:
        raise ConfigError(
            f"{setting('warmup_ratio')} needs the length of the run: {setting('samples')} or {setting('tokens_total')}"
        )


def run_length(run: Run, job: Job, micro: int, steps: int) -> RunLength | None:
    """Steps of the whole run; None if its length was not given.

    >>> run_length(Run(samples=50, epochs=10, warmup_ratio=0.03), Job(), 1, 16)
    RunLength(micro_steps=500, optimizer_updates=31, trainer_updates=40, warmup_updates=2)
    """
    per_micro_step = micro * job.data_parallel
    if run.tokens_total is not None:
        micro_steps = ceil_div(run.tokens_total, per_micro_step * job.sequence_length)
        updates = trainer_updates = max(1, ceil_div(micro_steps, steps))
    elif run.samples is not None:
        micro_batches = ceil_div(run.samples, per_micro_step)
        micro_steps = max(1, int(micro_batches * run.epochs))
        updates = max(1, micro_steps // steps)
        trainer_updates = ceil(run.epochs * ceil_div(micro_batches, steps))
    else:
        return None
    # transformers 5.23, training_args.py: get_warmup_steps rounds up
    warmup = None if run.warmup_ratio is None else ceil(trainer_updates * run.warmup_ratio)
    return RunLength(micro_steps, updates, trainer_updates, warmup)


def run_seconds(plan: Plan) -> float | None:
    """Time of the whole run; None if its length, or the time of a step, is not known."""
    time = plan.estimate.step_time
    if plan.run is None or time is None:
        return None
    return time.seconds * plan.run.micro_steps / plan.gradient_accumulation_steps


def most_energy_kwh(plan: Plan, gpu: Gpu) -> float | None:
    """Energy of the GPUs in the whole run if they draw what their power limit allows; None if that is not known."""
    seconds = run_seconds(plan)
    if seconds is None or gpu.power_watts is None:
        return None
    return gpu.power_watts * plan.estimate.job.num_gpus * seconds / JOULES_PER_KILOWATT_HOUR


def learning_rate(run: Run, global_batch_size: int) -> float | None:
    """The base rate carried over to this batch: square root for Adam-type (arXiv 2205.10287), linear for SGD."""
    if run.base_lr is None or run.base_batch is None:
        return None
    ratio = global_batch_size / run.base_batch
    return run.base_lr * (ratio**0.5 if run.adaptive else ratio)
