"""Measured runs for a terminal: probes beside their estimates, and how far estimates were off."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vramplan.measurements.accuracy import Accuracy, Row, summary
from vramplan.measurements.verify import LargestBatch, ProbeRun, VerifiedPlan
from vramplan.memory.measurement import Measured
from vramplan.memory.summarize import PHASES
from vramplan.units import GiB, counted, format_bytes, format_count


def tried(one: ProbeRun) -> RenderableType:
    """`vramplan probe`: one run beside its estimate."""
    run = one.measured
    verdict = Text("ran", style="bold green") if one.fits else Text("ran out of memory", style="bold red")
    batch = f"micro-batch {one.job.micro_batch_size}, accumulation {one.job.gradient_accumulation_steps}: "
    shown: list[RenderableType] = [heading(run), Text(""), Text(batch) + verdict + Text(_where(run))]
    if run.message:
        shown.append(Text(run.message, style="dim"))
    shown.append(Text(""))
    if one.predicted is None and not one.fits:
        return Group(*shown, footer(run))
    return Group(*shown, comparison(one), *([Text(""), speed(run)] if run.step_time else []), Text(""), footer(run))


def heading(run: Measured) -> Text:
    """What ran on what."""
    text = Text(run.model, style="bold")
    trained = (
        "all train" if run.job.method == "full" else f"{format_count(run.num_trainable_parameters)} in adapters train"
    )
    text.append(f"  {format_count(run.num_parameters)} parameters, {trained}\n", style="not bold")
    where = run.environment
    if where.device == "cpu":
        text.append(f"real steps on the host, watched, through the simulated allocator of {run.card}", style="not bold")
        if run.job.attention == "sdpa":
            text.append(
                "\nSDPA ran the host's kernels, which keep other tensors than a card's; --attention eager is the same"
                " on both. Times are the host's.",
                style="not bold dim",
            )
    else:
        cards = f"{where.ranks} x {where.device}" if where.ranks > 1 else where.device
        text.append(cards, style="not bold")
        if where.cap_bytes is not None:
            text.append(
                f", standing in for {run.card}: torch held to {format_bytes(where.cap_bytes)}", style="not bold"
            )
        elif where.held_by_others_bytes > GiB:
            text.append(f", {format_bytes(where.held_by_others_bytes)} held by others when it began", style="not bold")
    return text


def _where(run: Measured) -> str:
    if run.outcome == "oom":
        return f" in {run.failed_phase}"
    return ", though an evaluation at this batch runs out of memory" if run.failed_phase == "eval" else ""


def comparison(one: ProbeRun) -> Table:
    """Estimate and measurement side by side, with the error of the estimate."""
    run, predicted = one.measured, one.predicted
    table = Table(box=None, padding=(0, 2), header_style="bold", pad_edge=False)
    table.add_column("GiB", no_wrap=True)
    for name in ("estimate", "measured", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    said: dict[str, int] = {}
    if predicted is not None:
        said = {
            "allocated": predicted.peak_allocated_bytes,
            "reserved": predicted.peak_reserved_bytes,
            "on the card": predicted.device_total_bytes,
            "  outside torch": predicted.device_total_bytes - predicted.peak_reserved_bytes,
            **{f"  {name}, allocated": size for name, size in predicted.phases.items()},
        }
    seen = {
        "allocated": run.peak_allocated_bytes,
        "reserved": run.peak_reserved_bytes,
        "on the card": run.device_total_bytes,
        "  outside torch": run.context_bytes,
        **{f"  {name}, allocated": run.phases[name].allocated_bytes for name in PHASES if name in run.phases},
    }
    for name in said or seen:
        size, real = said.get(name), seen.get(name)
        error = f"{size / real - 1:+.2%}" if size is not None and real else ""
        figures = ["" if figure is None else f"{figure / GiB:.3f}" for figure in (size, real)]
        table.add_row(name, *figures, error, style="" if name.startswith(" ") else "bold")
    return table


def speed(run: Measured) -> Text:
    """How fast it was."""
    time = run.step_time
    assert time is not None
    said = f"{time:.3f} s a step, {run.tokens_per_second or 0:,.0f} tokens/s on each card"
    if run.model_flops_utilization is not None:
        said += f", {run.model_flops_utilization:.0%} of the card's dense rate (model FLOPs)"
    if run.job.gradient_accumulation_steps > run.micro_steps_run:
        said += (
            f"; {run.micro_steps_run} of {run.job.gradient_accumulation_steps} micro-steps run, the rest repeat them"
        )
    return Text(said)


def footer(run: Measured) -> Text:
    """With what it was measured."""
    where = run.environment
    parts = [f"{name} {number}" for name, number in where.versions.items()]
    parts += [f"CUDA {where.cuda}"] * bool(where.cuda) + [f"driver {where.driver}"] * bool(where.driver)
    parts += [where.allocator_settings] * bool(where.allocator_settings)
    return Text("Measured with " + ", ".join(parts) + "; random weights and tokens.", style="dim")


def runs(tries: Iterable[ProbeRun]) -> Table:
    """Several runs, a line each."""
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    for name in ("micro", "accum.", "reserved GiB", "measured", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in tries:
        said = one.predicted.peak_reserved_bytes if one.predicted else None
        seen = one.measured.peak_reserved_bytes
        table.add_row(
            str(one.job.micro_batch_size),
            str(one.job.gradient_accumulation_steps),
            "" if said is None else f"{said / GiB:.2f}",
            "" if seen is None else f"{seen / GiB:.2f}",
            f"{said / seen - 1:+.1%}" if said and seen else "",
            Text("ran", style="green")
            if one.fits
            else Text(f"out of memory in {one.measured.failed_phase}", style="red"),
        )
    return table


def largest(one: LargestBatch) -> RenderableType:
    """`vramplan probe --find-max`."""
    said = Text(f"Largest micro-batch that runs: {one.micro_batch_size}", style="bold")
    if not one.exact:
        said.append("; runs ended before the next larger one was tried, see --max-runs", style="not bold yellow")
    first = one.runs[0].measured
    return Group(heading(first), Text(""), runs(one.runs), Text(""), said, Text(""), footer(first))


def verified(one: VerifiedPlan) -> RenderableType:
    """What `suggest --probe` adds."""
    first = one.runs[0].measured
    shown: list[RenderableType] = [Text("Proved by real runs", style="bold"), runs(one.runs), Text("")]
    if one.plan is None:
        shown.append(Text("None of the plans ran.", style="bold red"))
    else:
        plan = one.plan
        said = Text("Use ")
        said.append(
            f"per_device_train_batch_size {plan.micro_batch_size}, "
            f"gradient_accumulation_steps {plan.gradient_accumulation_steps}",
            style="bold",
        )
        said.append(f": it ran on {first.environment.device}.")
        shown.append(said)
        if one.proof is not None and one.proof.measured.step_time:
            shown.append(speed(one.proof.measured))
    if not one.settled:
        shown.append(Text("A larger pair may run as well: the runs ended before, see --max-runs.", style="yellow"))
    return Group(*shown, Text(""), footer(first))


# -- accuracy ----------------------------------------------------------------------------------------------------------

COLUMNS = ("runs", "median", "P95", "worst", "too low")


def groups(rows: Iterable[Row], key: Callable[[Row], tuple[str, ...]]) -> dict[tuple[str, ...], list[Row]]:
    """Rows that a table shows as one line."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _cells(rows: list[Row]) -> list[str]:
    one = summary(rows)
    return [
        str(one.count), f"{one.median:+.2%}", f"{one.p95:.2%}", f"{one.worst:+.2%}", f"{one.too_low:.0%}"
    ]  # fmt: skip


def lines(one: Accuracy) -> tuple[list[list[str]], list[list[str]]]:
    """The cells of the two tables: our ledger's, the published runs'."""
    own = groups(one.rows, lambda row: (row.group, row.by, row.metric))
    several = len({row.by for row in one.published}) > 1 or any(row.by != "analytic" for row in one.published)
    others = groups(
        one.published,
        lambda row: (
            f"{row.group}, {row.by}" if several else row.group,
            row.metric,
            "all" if row.complete else "in part",
        ),
    )
    return [[*key, *_cells(rows)] for key, rows in own.items()], [[*key, *_cells(rows)] for key, rows in others.items()]


def verdicts(one: Accuracy) -> str:
    """Wrong fit verdicts and chosen batches in words."""
    said = []
    if one.verdicts:
        too_bright = sum(v.said and not v.ran for v in one.verdicts)
        too_dark = sum(v.ran and not v.said for v in one.verdicts)
        said.append(
            f"{counted(len(one.verdicts), 'verdict')}: {too_bright} wrongly said to fit, {too_dark} wrongly said not to"
        )
    for choice in one.choices:
        said.append(f"largest micro-batch {choice.largest}, chosen {choice.chosen}: {choice.run}")
    return "; ".join(said)


def accuracy(one: Accuracy) -> RenderableType:
    """`vramplan accuracy`."""
    own, others = lines(one)
    shown: list[RenderableType] = [
        Text(
            f"{counted(one.runs, 'measured run')} in the ledger"
            if one.runs
            else "No measured run is in the ledger yet.",
            style="bold",
        )
    ]
    if own:
        shown.append(_table(("card", "by", "metric"), own))
    if verdicts(one):
        shown.append(Text(verdicts(one)))
    if one.left_out:
        shown.append(Text(f"{counted(len(one.left_out), 'estimate')} could not be made:", style="yellow"))
        shown += [Text(f"  {said}", style="dim") for said in dict.fromkeys(one.left_out)]
    if one.runs:
        shown.append(Text(""))
    if others:
        shown += [Text("Published by others", style="bold"), _table(("group", "metric", "known"), others), Text("")]
        for group, unknown in one.unknown.items():
            if unknown:
                shown.append(Text(f"{group}: ", style="bold") + Text("; ".join(unknown), style="not bold dim"))
    return Group(*shown)


def _table(heads: tuple[str, ...], rows: list[list[str]]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False, collapse_padding=True)
    for name in heads:
        table.add_column(name, overflow="fold")
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def markdown(one: Accuracy, part: str = "") -> str:
    """The same as Markdown: the ledger's table, the published runs', or both."""
    own, others = lines(one)
    tables = []
    if part in ("", "ledger"):
        tables.append(_markdown(("card", "by", "metric"), own) if own else "No run of our own is in the ledger yet.\n")
    if part in ("", "published") and others:
        tables.append(_markdown(("group", "metric", "known"), others))
    return "\n".join(tables)


def _markdown(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    columns = (*heads, *COLUMNS)
    text = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join([*text, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"
