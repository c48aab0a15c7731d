"""`vramplan adapt` for a terminal and as JSON: the ladder of batches, and what policies make of a recorded run."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from rich.console import RenderableType
from rich.text import Text

from vramplan.adaptive.coupling import Coupling, rule_for
from vramplan.adaptive.decision import Decision
from vramplan.adaptive.ladder import LadderPlan
from vramplan.adaptive.rung import Rung
from vramplan.adaptive.simulate import Point, Simulation
from vramplan.inputs.job_values import EXPANDABLE_SEGMENTS
from vramplan.inputs.platforms import platform_notes
from vramplan.render.adapt_types import LadderData, RungData, SimulationData
from vramplan.render.figures import duration, free_gib, gib
from vramplan.render.terminal import LOOKS, Answer, Screen, hanging, notes, simple_table
from vramplan.render.verdict import subject
from vramplan.units import counted

BLOCKS, DIGITS = "▁▂▃▄▅▆▇█", "01234567"
"""Levels of a curve in text."""
HEADS = ("global batch", "micro × accum. × GPUs", "need", "tokens", "step", "rate", "smaller")
SMALLER = "smaller: micro-batches to go on with if memory runs out"
MOST_CHANGES = 8
"""Of one policy that are shown; the output of --json has all."""
NOT_KNOWN = "not known"


# -- the plan ----------------------------------------------------------------------------------------------------------


def plan(found: LadderPlan, global_batch: int) -> Answer:
    """Each global batch with its memory, its tokens and its time."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        title = subject(found.model, found.gpu.title, found.job.num_gpus)
        if not found.rungs:
            sign, words, colour = LOOKS["does not fit"]
            signed = words if screen.ascii_only else f"{sign} {words}"
            return [
                screen.text(f"{title}: global batch {global_batch}", "bold"),
                Text(signed, f"bold {colour}"),
                *notes(screen, platform_notes(found.gpu)),
                screen.text("`vramplan suggest` with the same options says what would help.", "dim"),
            ]
        first, last = found.rungs[0].global_batch_size, found.rungs[-1].global_batch_size
        end = "no larger one was asked for" if found.too_large is None else f"{found.too_large} does not fit"
        batches = counted(len(found.rungs), "rung")
        rule = rule_for(found.job.optimizer)
        return [
            screen.text(title, "bold"),
            screen.text(f"{batches}, from global batch {first} to {last}, each checked; {end}"),
            *notes(screen, [*platform_notes(found.gpu), _about_switches(found)]),
            Text(""),
            *_rungs(screen, found, rule),
            Text(""),
            screen.text(f"need: GiB of each GPU, of {free_gib(found.gpu.usable_bytes)}", "dim"),
            screen.text(f"rate: factor of the learning rate ({rule} rule, {found.job.optimizer})", "dim"),
            *(
                []
                if screen.width < _table_width(found, rule)
                else [screen.text("smaller: micro-batches to go on with if memory runs out", "dim")]
            ),
        ]

    return Answer(lay_out)


def _about_switches(found: LadderPlan) -> str:
    """Whether the run can move between the rungs, and what that takes."""
    if not found.switches_checked:
        return "each rung is checked as a run of its own; switches between them are not simulated for this job"
    checked = "switches between all rungs were simulated, the cache emptied before each"
    variable = f"set {EXPANDABLE_SEGMENTS}; " if found.job.expandable_segments else ""
    return f"{variable}{checked}"


def _rungs(screen: Screen, found: LadderPlan, rule: str) -> list[RenderableType]:
    rows = [_cells(found, rung, rule) for rung in found.rungs]
    if screen.width < _table_width(found, rule):
        return [
            line
            for batch, product, need, tokens, step, rate, smaller in rows
            for line in (
                screen.text(f"{batch} = {product}", "bold"),
                screen.text(f"  need {need}, {tokens} tokens"),
                screen.text(f"  step {step}, rate × {rate}"),
                screen.text(f"  smaller: {smaller}"),
            )
        ]
    table = simple_table(*((screen.text(head).plain, "right") for head in HEADS))
    for row in rows:
        table.add_row(*(screen.text(cell) for cell in row))
    return [table]


def _table_width(found: LadderPlan, rule: str) -> int:
    """Columns that the ladder takes as a table."""
    columns = zip(HEADS, *(_cells(found, rung, rule) for rung in found.rungs), strict=True)
    return sum(max(map(len, column)) + 2 for column in columns)


def _cells(found: LadderPlan, rung: Rung, rule: str) -> tuple[str, ...]:
    factor = Coupling(rule).factor(rung.global_batch_size, found.rungs[0].global_batch_size)
    return (
        str(rung.global_batch_size),
        f"{rung.micro_batch_size} × {rung.gradient_accumulation_steps} × {rung.num_gpus}",
        NOT_KNOWN if rung.need_bytes is None else gib(rung.need_bytes),
        f"{rung.global_batch_size * found.job.sequence_length:,}",
        NOT_KNOWN if rung.step_seconds is None else duration(rung.step_seconds),
        f"{factor:.3g}",
        ", ".join(str(other.micro_batch_size) for other in rung.alternatives) or "none",
    )


def plan_data(found: LadderPlan) -> LadderData:
    """`vramplan adapt plan --json`."""
    rule = rule_for(found.job.optimizer)
    return {
        "model": found.model,
        "card": found.gpu.name,
        "sequence_length": found.job.sequence_length,
        "learning_rate_rule": rule,
        "rungs": [_rung_data(found, rung, rule) for rung in found.rungs],
        "too_large": found.too_large,
        "expandable_segments": found.job.expandable_segments,
        "switches_checked": found.switches_checked,
        "notes": platform_notes(found.gpu),
    }


def _rung_data(found: LadderPlan, rung: Rung, rule: str) -> RungData:
    return {
        "global_batch_size": rung.global_batch_size,
        "micro_batch_size": rung.micro_batch_size,
        "gradient_accumulation_steps": rung.gradient_accumulation_steps,
        "num_gpus": rung.num_gpus,
        "device_total_bytes": rung.need_bytes,
        "step_seconds": rung.step_seconds,
        "tokens": rung.global_batch_size * found.job.sequence_length,
        "learning_rate_factor": Coupling(rule).factor(rung.global_batch_size, found.rungs[0].global_batch_size),
        "alternatives": [
            {
                "micro_batch_size": other.micro_batch_size,
                "gradient_accumulation_steps": other.gradient_accumulation_steps,
                "device_total_bytes": other.need_bytes,
                "step_seconds": other.step_seconds,
            }
            for other in rung.alternatives
        ],
    }


# -- the simulation ----------------------------------------------------------------------------------------------------


def simulations(found: Sequence[Simulation], name: str) -> Answer:
    """What each policy comes to, its batch over the run, and each of its changes."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        samples = found[0].points[-1].samples
        parts: list[RenderableType] = [
            screen.text(name, "bold"),
            screen.text(
                f"{counted(samples, 'sample')} in {counted(len(found[0].points), 'observation')}; steps are counted as"
                " if the run had gone the same way at other batches",
                "dim",
            ),
            Text(""),
            _outcomes(screen, found),
            Text(""),
            *_curves(screen, found),
        ]
        for one in found:
            parts += [Text(""), screen.text(one.policy, "bold"), *_changes(screen, one)]
        return parts

    return Answer(lay_out)


def _outcomes(screen: Screen, found: Sequence[Simulation]) -> RenderableType:
    heads = ("last", "steps", "fewer") if screen.narrow else ("last batch", "changes", "steps", "fewer steps")
    table = simple_table("policy", *((head, "right") for head in heads))
    for one in found:
        fewer = f"{1 - one.steps / one.first_batch_steps:.0%}" if one.first_batch_steps else NOT_KNOWN
        changes = [] if screen.narrow else [str(len(one.decisions))]
        table.add_row(screen.text(one.policy), str(one.points[-1].batch), *changes, f"{one.steps:,.0f}", fewer)
    return table


def _curves(screen: Screen, found: Sequence[Simulation]) -> list[RenderableType]:
    """Batch and noise scale over the samples, each in powers of two."""
    width = max(len(one.policy) for one in found) + 2
    columns = max(10, min(screen.width, 100) - width - 2)
    batches = [point.batch for one in found for point in one.points]
    low, high = min(batches), max(batches)
    lines: list[RenderableType] = [screen.text(f"Batch over the run, {low} to {high}", "bold")]
    for one in found:
        curve = _curve([point.batch for point in _columns(one.points, columns)], low, high, screen.ascii_only)
        lines.append(Text.assemble(f"{one.policy:<{width}}", (curve, "cyan"), no_wrap=True))
    scales = [point.noise_scale for point in _columns(found[0].points, columns)]
    known = [scale for scale in scales if scale is not None]
    if not known:
        return [*lines, screen.text("Noise scale: not known, the record has no norms of two batch sizes", "dim")]
    curve = _curve(scales, min(known), max(known), screen.ascii_only)
    return [
        *lines,
        screen.text(f"Noise scale over the run, {min(known):.3g} to {max(known):.3g} samples", "bold"),
        Text.assemble(" " * width, (curve, "cyan"), no_wrap=True),
    ]


def _columns(points: Sequence[Point], columns: int) -> list[Point]:
    """The last point within each of so many equal parts of the samples; of an empty part, the one before."""
    total, chosen, number = points[-1].samples, [], 0
    for column in range(columns):
        while number + 1 < len(points) and points[number + 1].samples * columns <= total * (column + 1):
            number += 1
        chosen.append(points[number])
    return chosen


def _curve(numbers: Sequence[float | None], low: float, high: float, ascii_only: bool) -> str:
    levels = DIGITS if ascii_only else BLOCKS
    span = log2(high / low) or 1.0
    return "".join(
        " " if number is None else levels[round(log2(number / low) / span * (len(levels) - 1))] for number in numbers
    )


def _changes(screen: Screen, one: Simulation) -> list[RenderableType]:
    rows: list[RenderableType] = []
    if not one.decisions:
        rows.append(screen.text("  no change"))
    else:
        rows.append(hanging(screen, [(_in_words(decision), "") for decision in one.decisions[:MOST_CHANGES]]))
    if len(one.decisions) > MOST_CHANGES:
        rows.append(screen.text(f"  and {len(one.decisions) - MOST_CHANGES} more; --json lists all", "dim"))
    unused = (f"{count:,} of {len(one.points):,} observations: {reason}" for reason, count in one.unused.items())
    return [*rows, *notes(screen, unused)]


def _in_words(decision: Decision) -> str:
    before, after = decision.before.global_batch_size, decision.after.global_batch_size
    rate = f"rate × {decision.learning_rate_factor:.3g}"
    return f"at {decision.samples:,} samples {before} to {after}, {rate}: {decision.reason}"


def simulations_data(found: Sequence[Simulation]) -> list[SimulationData]:
    """`vramplan adapt simulate --json`."""
    return [
        {
            "policy": one.policy,
            "steps": one.steps,
            "first_batch_steps": one.first_batch_steps,
            "decisions": [decision.as_dict() for decision in one.decisions],
            "unused": one.unused,
            "points": [
                {
                    "samples": point.samples,
                    "tokens": point.tokens,
                    "global_batch_size": point.batch,
                    "learning_rate_factor": point.learning_rate_factor,
                    "learning_rate": point.learning_rate,
                    "noise_scale": point.noise_scale,
                }
                for point in one.points
            ],
        }
        for one in found
    ]
