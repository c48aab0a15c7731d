"""`vramplan check` for a terminal: the verdict first, short enough for a launcher's log."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vramplan.frameworks import Note
from vramplan.render.text import bar, breakdown, footer, free_gib, gib, heading, phases
from vramplan.verdict import Verdict

STYLES = {"warning": "bold yellow", "unknown": "bold red", "default": "cyan", "ignored": "dim"}


def verdict(one: Verdict) -> RenderableType:
    """Everything of a check."""
    estimate, reading = one.estimate, one.reading
    shown: list[RenderableType] = [
        Text(f"{reading.framework} {reading.version}", style="dim"),
        heading(estimate, one.card, estimate.job.num_gpus),
        Text(""),
        _headline(one),
        Text(""),
        breakdown(estimate),
        Text(""),
        phases(estimate),
    ]
    if one.evaluation_bytes is not None:
        size = reading.eval_batch_size
        shown.append(Text(f"Evaluation with {size} samples at once: {gib(one.evaluation_bytes)} GiB on the card"))
    if not one.fits:
        shown += [Text(""), *_way_out(one)]
    shown += [Text(""), notes(reading.notes)]
    return Group(*shown, *footer(estimate))


def _headline(one: Verdict) -> Text:
    job, estimate = one.estimate.job, one.estimate
    said = Text("FITS", style="bold green") if one.fits else Text("DOES NOT FIT", style="bold red")
    need, capacity = one.need_bytes, estimate.capacity_bytes
    said.append(f"  {gib(need)} of {free_gib(capacity)} GiB  ", style="not bold default")
    said.append_text(bar(need, capacity, 20))
    said.append(
        f"\n{job.num_gpus} x {job.micro_batch_size} x {job.gradient_accumulation_steps} = global batch"
        f" {job.global_batch_size}, {job.sequence_length:,} tokens a sample",
        style="not bold default",
    )
    if not one.fits and not estimate.fits and estimate.fits_without_margin:
        said.append("; it fits only without the margin", style="not bold default")
    if not one.fits and estimate.fits and one.free_bytes >= 0:
        why = "evaluation" if (one.evaluation_bytes or 0) > estimate.device_total_bytes else "the free space asked for"
        said.append(f"; what is missing is room for {why}", style="not bold default")
    return said


def _way_out(one: Verdict) -> list[RenderableType]:
    """The fewest changes at the same global batch, in the framework's own words."""
    reading, search, job = one.reading, one.search, one.estimate.job
    if search is None:
        return []
    plan = search.recommended
    if plan is not None and plan.micro_batch_size < one.estimate.micro_batch_size:
        batch = {
            "micro_batch_size": plan.micro_batch_size,
            "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        }
        said = Text("Same global batch, fits: ")
        said.append("  ".join(reading.say(batch)), style="bold")
        return [said]
    shown: list[RenderableType] = [
        Text("Not at this global batch, whatever the micro-batch. What would help:", style="bold")
    ]
    table = Table(box=None, padding=(0, 1), show_header=True, header_style="bold", pad_edge=False)
    for name in ("change", "then GiB", "fits", "costs"):
        table.add_column(name, justify="right" if name == "then GiB" else "left")
    for advice in search.advice:
        smaller: dict[str, int] = {}
        if advice.micro_batch_size != job.micro_batch_size:
            steps = max(1, job.global_batch_size // (advice.micro_batch_size * job.num_gpus))
            smaller = {"micro_batch_size": advice.micro_batch_size, "gradient_accumulation_steps": steps}
        change = "\n".join([*(reading.say(advice.update) or [advice.change]), *reading.say(smaller)])
        fits = Text("yes", style="green") if advice.fits else Text("no", style="red")
        table.add_row(change, gib(advice.device_total_bytes), fits, Text(advice.cost, style="dim"))
    return [*shown, table]


def notes(all_notes: list[Note]) -> RenderableType:
    """What a reader should know; keys that change nothing in one line."""
    shown = []
    for note in all_notes:
        if note.kind == "ignored":
            continue
        line = Text(f"{note.kind}: ", style=STYLES[note.kind])
        name = f"{note.key} " if note.key else ""
        line.append(f"{name}{note.text}", style="not bold default")
        if note.place and note.kind != "default":
            line.append(f"  [{note.place}]", style="dim not bold")
        shown.append(line)
    ignored = [note.key for note in all_notes if note.kind == "ignored"]
    if ignored:
        shown.append(Text(f"no effect on memory: {', '.join(ignored)}", style="dim"))
    return Group(*shown)
