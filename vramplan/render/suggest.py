"""`vramplan suggest` for a terminal: the plan to use, what frees the next one, all plans, where the memory goes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from vramplan.inputs.gpu import Gpu
from vramplan.planner.search_result import (
    WITHOUT_MARGIN,
    CommunicationAdvice,
    LeverEffect,
    Plan,
    Rejected,
    Run,
    RunLength,
    Search,
)
from vramplan.planner.training_run import most_energy_kwh, run_seconds
from vramplan.render.figures import KEYS, banded, duration, free_gib, gib, room_gib, sentence, significant, time_of_step
from vramplan.render.headline import Headline, best_free, headlines
from vramplan.render.terminal import (
    Answer,
    Box,
    Screen,
    all_assumptions,
    assumption_line,
    each_gpu,
    flow,
    hanging,
    held_by_others,
    indented,
    inside,
    notes,
    plan_line,
    side_by_side,
    simple_table,
    where_it_goes,
)
from vramplan.render.verdict import doubts, outcome, reason_of, subject
from vramplan.units import counted

PLANS, CHANGES = 50, 76
"""Columns of the two parts that may stand beside another."""
MOST_COST = 20
"""Columns of what a change costs."""
MOST_NAMED = 6
"""Micro-batches that do not fit and are named one by one."""


def answer(search: Search, run: Run, verbose: bool = False) -> Answer:
    """Everything that `vramplan suggest` prints."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        chosen = search.recommended
        estimate = chosen.estimate if chosen is not None else search.smallest
        gpu = subject(search.model, search.card.title, search.job.num_gpus)
        box = Box(
            gpu,
            outcome(estimate),
            estimate.device_total_bytes,
            estimate.capacity_bytes,
            estimate.margin_bytes,
            reason=reason_of(estimate),
        )
        lines = _box_of_plan(screen, search, chosen) if chosen is not None else _box_of_nothing(screen, search)
        shown: list[RenderableType] = [box.panel(screen, lines), assumption_line(screen, estimate, verbose=verbose)]
        shown += notes(screen, (*estimate.notes, *held_by_others(estimate, search.card.held_bytes)))
        shown += notes(screen, search.warnings, "Warning")
        shown += notes(screen, search.guidance, "Guidance")
        shown.append(Text(""))

        def first(part: Screen) -> Group:
            if chosen is not None:
                return Group(*_plans(part, search), *_run(part, search, chosen, run), *_more_free_changes(part, search))
            return Group(*_what_would_help(part, search.advice, search.smallest.micro_batch_size))

        shown += [
            side_by_side(screen, first, PLANS if chosen is not None else CHANGES, where_it_goes(estimate)),
            *each_gpu(screen, estimate),
        ]
        return [*shown, *(all_assumptions(screen, estimate) if verbose else [])]

    return Answer(lay_out)


def _box_of_plan(screen: Screen, search: Search, plan: Plan) -> list[Text]:
    sizes = (plan.micro_batch_size, plan.gradient_accumulation_steps)
    keys = [Text.assemble(f"{key} ", (str(size), "bold")) for key, size in zip(KEYS, sizes, strict=True)]
    lines = [plan_line(screen, search.job, *sizes), flow(keys, inside(screen))]
    if text := time_of_step(plan.estimate):
        lines.append(screen.text(sentence(text)))
    if search.reason:
        lines.append(screen.text(search.reason, "dim"))
    lines += [_headline(headline) for headline in headlines(search)]
    return [*lines, *(screen.text(doubt, "yellow") for doubt in doubts(plan.estimate))]


def _box_of_nothing(screen: Screen, search: Search) -> list[Text]:
    smallest = search.smallest
    plan = plan_line(screen, search.job, smallest.micro_batch_size, smallest.gradient_accumulation_steps, True)
    return [plan, *(_headline(headline) for headline in headlines(search))]


def _headline(headline: Headline) -> Text:
    return Text.assemble((f"{headline.title}: " if headline.title else "", "bold"), headline.text)


def _plans(screen: Screen, search: Search) -> list[RenderableType]:
    """Every pair that meets the global batch: those that fit, the preferred one first, and those that do not."""
    num_gpus = search.job.num_gpus
    on = f" on {num_gpus} GPUs" if num_gpus > 1 else ""
    rows: list[RenderableType] = [
        Text.assemble((f"Plans for a global batch of {search.global_batch_size:,}", "bold"), (on, "bold")),
        Text("  micro  accum.    GiB   free     step", "dim"),
    ]
    for plan in search.plans:
        best = plan is search.recommended
        need, capacity = plan.estimate.device_total_bytes, plan.estimate.capacity_bytes
        rows.append(
            screen.text(
                f"{'›' if best else ' '} {plan.micro_batch_size:>5}  {plan.gradient_accumulation_steps:>6}"
                f"  {gib(need):>5}  {room_gib(capacity, need):>5}  {_step(plan):>7}",
                "bold" if best else "",
            )
        )
    return [*rows, *_rejected(screen, search.rejected)]


def _step(plan: Plan) -> str:
    """The time of a step, or as a multiple of the fastest plan's."""
    time = plan.estimate.step_time
    return f"{plan.relative_step_time:.2f} ×" if time is None else duration(time.seconds)


def _rejected(screen: Screen, rejected: Sequence[Rejected]) -> list[RenderableType]:
    if not rejected:
        return []
    first, others = rejected[0], [str(pair.micro_batch_size) for pair in rejected[1:]]
    pair = f"  {first.micro_batch_size:>5}  {first.gradient_accumulation_steps:>6}"
    if first.device_total_bytes is None:
        rows = [Text(f"{pair}  does not fit", "red")]
    elif first.reason == WITHOUT_MARGIN:
        words = "only w/o margin" if screen.width < PLANS else "fits only without margin"
        rows = [Text(f"{pair}  {gib(first.device_total_bytes):>5}  {words}", "yellow")]
    else:
        rows = [Text(f"{pair}  {gib(first.device_total_bytes):>5}  does not fit", "dim")]
    if others:
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        verb = "does" if len(others) == 1 else "do"
        rows.append(Text(f"  {', '.join(others[:MOST_NAMED])}{more} {verb} not fit", "dim"))
    return [*rows]


def _run(screen: Screen, search: Search, plan: Plan, run: Run) -> list[RenderableType]:
    """The largest micro-batch, the learning rate and the steps of the whole run."""
    facts = []
    if search.max_micro_batch_size != plan.micro_batch_size:
        facts.append(f"Largest micro-batch that fits at any global batch: {search.max_micro_batch_size}")
    if search.learning_rate is not None:
        rule = "square-root" if search.adaptive else "linear"
        facts.append(f"Learning rate for this batch, by the {rule} rule: {search.learning_rate:.3g}")
    if search.communication is not None:
        facts += _communication(search.communication, plan)
    if plan.run is not None:
        facts += [_length_of_run(run, plan.run), *_time_of_run(plan, search.card)]
    return [Text(""), *(screen.text(fact) for fact in facts)] if facts else []


def _communication(advice: CommunicationAdvice, plan: Plan) -> list[str]:
    """What communication costs, and the change that helps most."""
    facts = [sentence(advice.text)]
    time = plan.estimate.step_time
    if advice.gains and time is not None:
        best = advice.gains[0]
        saved = 1 - best.seconds_per_sample * plan.global_batch_size / time.seconds
        facts.append(f"Less of it: {best.change}; {saved:.0%} less time, {gib(best.device_total_bytes)} GiB")
    return facts


def _length_of_run(run: Run, length: RunLength) -> str:
    """The steps of the whole run."""
    given = counted(run.samples or 0, "sample") + f", {run.epochs:g} epoch{'' if run.epochs == 1 else 's'}"
    if run.tokens_total is not None:
        given = counted(run.tokens_total, "token")
    updates = f"about {counted(length.optimizer_updates, 'optimizer step')}"
    text = f"{given}: {counted(length.micro_steps, 'micro-step')} on each GPU, {updates}"
    if length.trainer_updates != length.optimizer_updates:
        text += (
            f" ({length.trainer_updates:,} if the loop also steps at the end of each epoch, as transformers' Trainer"
            " does)"
        )
    return text + (f", {length.warmup_updates:,} of warm-up" if length.warmup_updates is not None else "")


def _time_of_run(plan: Plan, gpu: Gpu) -> list[str]:
    """How long the whole run takes, and the most energy; nothing if the time of a step is not known."""
    time, seconds, energy_kwh = plan.estimate.step_time, run_seconds(plan), most_energy_kwh(plan, gpu)
    if time is None or seconds is None:
        return []
    energy = f", {significant(energy_kwh)} kWh at the power limit" if energy_kwh is not None else ""
    return [f"Time of the run: about {banded(seconds, time.relative_error)}, without reading data{energy}"]


def _more_free_changes(screen: Screen, search: Search) -> list[RenderableType]:
    """Free changes beside the one in the box."""
    if len(search.advice) < 2:
        return []
    best = best_free(search.advice)
    rows = [
        (f"{change.change}: saves {free_gib(change.saved_bytes)}, then {gib(change.device_total_bytes)}", "")
        for change in search.advice
        if change is not best
    ]
    title = f"Also free, GiB at micro-batch {best.micro_batch_size}"
    return [Text(""), Text(title, "bold"), hanging(screen, rows)]


def _what_would_help(screen: Screen, advice: Sequence[LeverEffect], micro_batch_size: int) -> list[RenderableType]:
    """Each change, cheapest first: what it saves, what is needed then, what it costs."""
    if not advice:
        return []
    other = " or the one in brackets" if any(change.micro_batch_size != micro_batch_size for change in advice) else ""
    title = Text.assemble(("What would help", "bold"), (f", GiB at micro-batch {micro_batch_size}{other}", "dim"))
    if screen.narrow:
        rows = []
        for change in advice:
            saves = f"saves {free_gib(change.saved_bytes)}, " if change.saved_bytes > 0 else ""
            then = f"{saves}then {_then(change, micro_batch_size)}"
            rows.append((f"{change.change}: {then}, {_fits(change)}; costs: {change.cost}", ""))
        return [title, hanging(screen, rows)]
    from textwrap import fill

    table = simple_table("change", ("saves", "right"), ("then", "right"), "fits", "costs")
    for change in advice:
        table.add_row(
            change.change,
            free_gib(change.saved_bytes) if change.saved_bytes > 0 else "",
            _then(change, micro_batch_size),
            Text("yes", "green") if change.fits else Text("no", "red"),
            Text(fill(change.cost, MOST_COST), "dim"),
        )
    return [title, indented(table)]


def _then(change: LeverEffect, micro_batch_size: int) -> str:
    """The need with a change, and its micro-batch if that is another."""
    other = f" ({change.micro_batch_size})" if change.micro_batch_size != micro_batch_size else ""
    return f"{gib(change.device_total_bytes)}{other}"


def _fits(change: LeverEffect) -> str:
    return "fits" if change.fits else "does not fit"


__all__ = ["answer"]
