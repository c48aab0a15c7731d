"""`vramplan check` for a terminal: the verdict first, short enough for a launcher's log."""

from __future__ import annotations

from textwrap import fill

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vramplan.frameworks.settings import Note
from vramplan.planner.check import Verdict
from vramplan.render.bars import fullness
from vramplan.render.terminal import breakdown, footer, free_gib, gib, heading, phases, spread, then_gib

WIDEST, WIDEST_COST = 40, 22
"""Characters of a setting, and of what it costs, in a line of 80."""
STYLES = {"warning": "bold yellow", "unknown": "bold red", "default": "cyan", "ignored": "dim"}


def verdict(one: Verdict) -> RenderableType:
    """Everything of a check."""
    estimate, reading = one.estimate, one.reading
    shown: list[RenderableType] = [
        Text(f"{reading.framework} {reading.version}", style="dim"),
        heading(estimate, one.card, estimate.job.num_gpus),
        Text(""),
        _headline(one),
        *([Text(""), data_set(one)] if one.data is not None else []),
        Text(""),
        breakdown(estimate),
        Text(""),
        *spread(estimate),
        phases(estimate),
    ]
    if one.evaluation_bytes is not None:
        size = reading.eval_batch_size
        shown.append(Text(f"Evaluation with {samples(size)} at once: {gib(one.evaluation_bytes)} GiB on the card"))
    if not one.fits:
        shown += [Text(""), *_way_out(one)]
        if reading.spelling != "python" and reading.framework != "torchtitan":  # Python and TOML are not edited
            shown.append(Text("--fix prints it with the fewest changes that make it fit.", style="dim"))
    shown += [Text(""), notes(reading.notes)]
    return Group(*shown, *footer(estimate))


def samples(number: int | None) -> str:
    """So many of them.

    >>> samples(1), samples(2)
    ('1 sample', '2 samples')
    """
    return f"{number} sample{'' if number == 1 else 's'}"


def _headline(one: Verdict) -> RenderableType:
    job, estimate = one.estimate.job, one.estimate
    said = Text("FITS", style="bold green") if one.fits else Text("DOES NOT FIT", style="bold red")
    need, capacity = one.need_bytes, estimate.capacity_bytes
    line = Table.grid(padding=(0, 2))
    line.add_row(said, f"{gib(need)} of {free_gib(capacity)} GiB", fullness(need, capacity, 20))
    rest = Text(
        f"{job.data_parallel} x {job.micro_batch_size} x {job.gradient_accumulation_steps} = global batch"
        f" {job.global_batch_size}, {job.sequence_length:,} tokens a sample"
    )
    if not one.fits and not estimate.fits and estimate.fits_without_margin:
        rest.append("; it fits only without the margin")
    if not one.fits and estimate.fits and one.free_bytes >= 0:
        why = "evaluation" if (one.evaluation_bytes or 0) > estimate.device_total_bytes else "the free space asked for"
        rest.append(f"; what is missing is room for {why}")
    return Group(line, rest)


QUANTILES = {"P50": 0.5, "P95": 0.95, "P99": 0.99}


def data_set(one: Verdict) -> RenderableType:
    """How long the samples are, and what that makes of the batches."""
    data = one.data
    assert data is not None
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="bold", pad_edge=False)
    figures = {name: data.distribution.quantile(share) for name, share in QUANTILES.items()}
    for name, length in {**figures, "longest": data.distribution.longest, "limit": data.limit}.items():
        table.add_column(name, footer=f"{length:,}", justify="right")
    table.add_row(*(str(column.footer) for column in table.columns))
    longer = data.distribution.count_longer(data.limit)
    said = [f"{data.lengths.path.name}: {data.distribution.samples:,} samples, their tokens {data.lengths.source}"]
    if longer:
        what = "dropped" if data.drops_longer else "cut"
        said.append(f"{percent(longer / data.distribution.samples)} are longer than the limit ({longer:,}): {what}")
    rows = {"samples": "", "padded": ", every row padded to the limit", "packed": ", rows packed full"}[data.rows]
    said.append(f"Longest row of a batch: {data.worst_length:,} tokens{rows}")
    which = "all" if data.trained_samples == data.distribution.samples else f"{data.trained_samples:,}"
    said.append(f"An epoch over {which} of them: {data.steps_per_epoch:,} steps")
    if data.padding_share:
        said.append(
            f"A batch of {data.micro_batch_size} is padded to {data.padded_to:,.0f} tokens on average,"
            f" {percent(data.padding_share)} of which is padding"
        )
    if data.near_share is not None:
        said.append(f"{percent(data.near_share)} of all batches need 95% or more of what the longest needs")
    if data.fitting_length:
        over = data.distribution.count_longer(data.fitting_length) / data.distribution.samples
        words = "  ".join(one.reading.say({"sequence_length": data.fitting_length}))
        said.append(
            f"Up to {data.fitting_length:,} tokens would fit ({words}): {percent(over)} of the samples are longer"
        )
    elif data.fitting_length == 0:
        said.append("No length would fit at this micro-batch")
    return Group(Text(said[0]), table, *(Text(line) for line in said[1:]))


def percent(share: float) -> str:
    """A share that is never rounded to none or all.

    >>> percent(0.00003), percent(0.5)
    ('under 0.1%', '50.0%')
    """
    if 0 < share < 0.001:
        return "under 0.1%"
    return "over 99.9%" if 0.999 < share < 1 else f"{share:.1%}"


def _way_out(one: Verdict) -> list[RenderableType]:
    """The fewest changes at the same global batch, in the framework's own words."""
    reading, shown = one.reading, list[RenderableType]()
    if one.eval_batch_size:
        said = Text(f"Evaluation with {samples(one.eval_batch_size)} at once fits: ")
        shown.append(said.append("  ".join(reading.say({"eval_batch_size": one.eval_batch_size})), style="bold"))
    if one.plan is not None:
        batch = {
            "micro_batch_size": one.plan.micro_batch_size,
            "gradient_accumulation_steps": one.plan.gradient_accumulation_steps,
        }
        said = Text("Same global batch, fits: ")
        return [*shown, said.append("  ".join(reading.say(batch)), style="bold")]
    if one.search is None:
        return shown
    if one.search.recommended is not None:
        why = "what is missing torch caches, and gives back on a fuller card; without --min-headroom it fits"
        return [
            *shown,
            Text("Training fits; an evaluation does not, even of 1 sample" if one.eval_batch_size == 0 else why),
        ]
    no = "Not at this global batch, whatever the micro-batch"
    if not one.advice:
        return [*shown, Text(f"{no}; nothing else that {reading.framework} can be told would help", style="bold")]
    shown.append(Text(f"{no}. What would help:", style="bold"))
    each = one.advice[0].batch  # the same for all: what needs least
    if each:
        shown.append(Text(f"(each with {', '.join(each)})"))
    changes = ["\n".join(counsel.settings) or f"on {counsel.card}" for counsel in one.advice]
    table = Table(box=None, padding=(0, 1), show_header=True, header_style="bold", pad_edge=False)
    widest = max(len(line) for change in changes for line in change.splitlines())
    table.add_column("change", overflow="fold", min_width=min(widest, WIDEST))
    table.add_column("then GiB", justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    table.add_column("costs")
    for counsel, change in zip(one.advice, changes, strict=True):
        fits = Text("yes", style="green") if counsel.fits else Text("no", style="red")
        table.add_row(
            Text(change),
            then_gib(counsel.device_total_bytes, counsel.fits),
            fits,
            Text(fill(counsel.cost, WIDEST_COST), style="dim"),
        )
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
