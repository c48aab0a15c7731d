"""Tables and bars for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.estimate import Estimate, Term
from vramplan.planner.levers import LeverEffect
from vramplan.planner.suggest import FRAGMENTED, WITHOUT_MARGIN, Plan, Run, Search
from vramplan.render.bars import Bar, alike, peft_expert_pattern, plain
from vramplan.units import GiB, format_bytes, format_count

WIDTH = 80
BAR = 22
NARROW = 60
"""Columns below which figures stand without pictures."""
CATEGORIES = {
    "parameter": ("weights", "blue"),
    "gradient": ("gradients", "cyan"),
    "optimizer_state": ("optimizer states", "magenta"),
    "activation": ("activations", "green"),
    "logits": ("logits", "yellow"),
    "temporary": ("temporaries", "bright_black"),
    "communication": ("communication", "bright_blue"),
    "context": ("CUDA context, NCCL", "red"),
    "reserved_unused": ("cached, unused", "white"),
}
"""How each category of memory is called and coloured."""


def console(width: int | None = None) -> Console:
    """A console no wider than 80 columns where its output is not a terminal."""
    return Console(highlight=False, width=width)


def gib(num_bytes: int) -> str:
    """GiB with one digit; a need never rounds down."""
    return f"{-(-num_bytes * 10 // GiB) / 10:.1f}"


def then_gib(num_bytes: int, fits: bool) -> str:
    """What a change comes to; where it does not fit that may be what its tensors take alone."""
    return ("" if fits else ">=") + gib(num_bytes)


def free_gib(num_bytes: int) -> str:
    """GiB with one digit, rounded down: free space is never overstated."""
    return f"{num_bytes * 10 // GiB / 10:.1f}"


def bar(one: Estimate, width: int = BAR) -> Bar:
    """How full a card is, and of what."""
    totals = one.by_category()
    sizes = [(totals.get(category, 0), colour) for category, (_, colour) in CATEGORIES.items()]
    return peft_expert_pattern(sizes, one.capacity_bytes, width)


def _grid(*justify: str) -> Table:
    table = Table.grid(padding=(0, 2))
    for side in justify:
        table.add_column(justify=side, no_wrap=side != "left")  # type: ignore[arg-type]
    return table


# -- suggest -----------------------------------------------------------------------------------------------------------


def search(one: Search, run: Run, width: int = WIDTH) -> RenderableType:
    """`vramplan suggest`."""
    shown: list[RenderableType] = [heading(one.smallest, one.card, one.job.num_gpus), Text("")]
    if one.plans:
        shown += [plan_table(one, width), Text(""), recommendation(one), Text("")]
        assert one.recommended is not None
        shown += [breakdown(one.recommended.estimate), Text(""), *spread(one.recommended.estimate)]
    else:
        shown += [
            Text("Nothing fits: ", style="bold red")
            + Text(f"even micro-batch {one.smallest.micro_batch_size} needs at least ")
            + Text(f"{gib(one.smallest.lower_bound_bytes)} of ")
            + Text(f"{free_gib(one.smallest.capacity_bytes - one.smallest.margin_bytes)} GiB."),
            Text(""),
            breakdown(one.smallest),
            Text(""),
            *spread(one.smallest),
        ]
    if run.samples is not None and one.recommended is not None:
        shown += [schedule(one.recommended, run), Text("")]
    if one.advice:
        shown += [advice_table(one.advice, one.recommended is None, one.advice[0].micro_batch_size), Text("")]
    shown += [Text(f"Warning: {warning}", style="yellow") for warning in one.warnings]
    shown += footer(one.smallest)
    return Group(*shown)


def heading(one: Estimate, card: Gpu, num_gpus: int) -> Text:
    """What is trained on what."""
    cards = f"{num_gpus} x {card.title}" if num_gpus > 1 else card.title
    full = one.job.method == "full"
    whole = "all" if one.num_trainable_parameters == one.num_parameters else format_count(one.num_trainable_parameters)
    trained = f"{whole} train" if full else f"{format_count(one.num_trainable_parameters)} in adapters train"
    text = Text(one.model, style="bold")
    text.append(f"  {format_count(one.num_parameters)} parameters, {trained}\n", style="not bold")
    held = f", {format_bytes(card.held_bytes)} held by others" if card.held_bytes else ""
    kept = f", {free_gib(one.margin_bytes)} of it kept free as a margin" if one.margin_bytes else ""
    text.append(f"{cards}  {free_gib(one.capacity_bytes)} GiB for this process{kept}{held}", style="not bold")
    return text


def plan_table(one: Search, width: int = WIDTH) -> Table:
    """Every pair, fastest first, then those that do not fit."""
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    for name in ("", "micro", "accum.", "cards"):
        table.add_column(name, justify="right", no_wrap=True)
    wide = width >= NARROW
    if wide:
        where = "memory on the fullest card" if one.smallest.cards else "memory on each card"
        table.add_column(where if width >= 78 else "")
    for name in ("GiB", "free", *["step time"] * wide):
        table.add_column(name, justify="right", no_wrap=True)
    for plan in one.plans:
        best = plan is one.recommended
        need, room = plan.estimate.device_total_bytes, plan.estimate.headroom_bytes
        cells = (plan.micro_batch_size, plan.gradient_accumulation_steps, one.job.num_gpus)
        table.add_row(
            ">" if best else "",
            *(str(cell) for cell in cells),
            *[bar(plan.estimate, max(2, min(BAR, width - 56)))] * wide,
            gib(need),
            free_gib(room),
            *[f"{plan.relative_step_time:.2f} x"] * wide,
            style="bold" if best else "",
        )
    for rejected in one.rejected[:1]:
        assert rejected.device_total_bytes is not None
        short = {WITHOUT_MARGIN: "only without margin", FRAGMENTED: "too fragmented, least"}
        said = short.get(rejected.reason, "does not fit, at least")
        table.add_row(
            "",
            str(rejected.micro_batch_size),
            str(rejected.gradient_accumulation_steps),
            str(one.job.num_gpus),
            *[Text(said if width >= 78 else "no", style="red")] * wide,
            gib(rejected.device_total_bytes),
            "" if wide else Text("no", style="red"),
            *[""] * wide,
            style="dim",
        )
    if len(one.rejected) > 1:
        rest = ", ".join(str(rejected.micro_batch_size) for rejected in one.rejected[1:6])
        more = ", ..." if len(one.rejected) > 6 else ""
        planned = max((plan.micro_batch_size for plan in one.plans), default=0)
        which = "Larger" if one.rejected[1].micro_batch_size > planned else "Other"
        table.caption = f"{which} micro-batches that meet the target do not fit either: {rest}{more}"
        table.caption_justify = "left"
    return table


def recommendation(one: Search) -> Text:
    """The pair to use, in the framework's words."""
    plan = one.recommended
    assert plan is not None
    text = Text("Use ")
    text.append(
        f"per_device_train_batch_size {plan.micro_batch_size}, "
        f"gradient_accumulation_steps {plan.gradient_accumulation_steps}",
        style="bold",
    )
    text.append(f"\nGlobal batch {plan.data_parallel} x {plan.micro_batch_size} x {plan.gradient_accumulation_steps}")
    text.append(f" = {plan.global_batch_size}; the largest micro-batch that fits at all is {one.max_micro_batch_size}.")
    if one.learning_rate is not None:
        rule = "square-root" if one.adaptive else "linear"
        text.append(f"\nLearning rate for this batch, by the {rule} rule: {one.learning_rate:.3g}")
    return text


def schedule(plan: Plan, run: Run) -> Text:
    """How many steps a whole run takes."""
    return Text(
        f"{run.samples} samples, {run.epochs:g} epochs: {plan.micro_steps} micro-steps per card, about"
        f" {plan.optimizer_updates} optimizer updates ({plan.trainer_updates} where the loop also steps at the end of"
        " each epoch, as transformers' Trainer does)"
        + (
            f" ({plan.relative_run_time:.2f} x the shortest plan's time)"
            if plan.relative_run_time is not None and plan.relative_run_time > 1.005
            else ""
        )
    )


def advice_table(advice: Sequence[LeverEffect], nothing_fits: bool, micro_batch_size: int) -> Group:
    """What would help, cheapest first."""
    title = "What would help" if nothing_fits else f"Micro-batch {micro_batch_size} would fit, at no cost, with"
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    table.add_column("change", no_wrap=True)
    table.add_column("saves GiB", justify="right", no_wrap=True)
    table.add_column("then GiB", justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    table.add_column("costs")
    for one in advice:
        saves = free_gib(one.saved_bytes) if one.saved_bytes > 0 else "-"
        fits = Text("yes", style="green") if one.fits else Text("no", style="red")
        table.add_row(one.change, saves, then_gib(one.device_total_bytes, one.fits), fits, Text(one.cost, style="dim"))
    return Group(Text(title, style="bold"), table)


# -- estimate ----------------------------------------------------------------------------------------------------------


def estimate(one: Estimate, card: Gpu, num_gpus: int, explain: bool = False) -> RenderableType:
    """`vramplan estimate`."""
    verdict = Text("fits", style="bold green") if one.fits else Text("does not fit", style="bold red")
    if one.fits_without_margin and not one.fits:
        verdict = Text("fits only without the safety margin", style="bold red")
    room = (
        f", {free_gib(one.headroom_bytes)} GiB free"
        if one.fits and one.headroom_bytes >= 0
        else ""
        if one.fits_without_margin
        else f", needs at least {gib(one.lower_bound_bytes)} of {free_gib(one.capacity_bytes)} GiB"
        if one.lower_bound_bytes > one.capacity_bytes
        else ", for want of a free stretch large enough"
    )
    batch = Text(f"micro-batch {one.micro_batch_size}, accumulation {one.gradient_accumulation_steps}: ") + verdict
    batch.append(f"{room}")
    totals = _grid("left", "right", "left")
    totals.add_row("allocated", gib(one.peak_allocated_bytes), Text("torch.cuda.max_memory_allocated", style="dim"))
    totals.add_row("reserved", gib(one.peak_reserved_bytes), Text("torch.cuda.max_memory_reserved", style="dim"))
    totals.add_row("on the card", gib(one.device_total_bytes), Text("nvidia-smi, this process", style="dim"))
    shown: list[RenderableType] = [heading(one, card, num_gpus), Text(""), batch, Text("")]
    shown += [totals, Text(""), breakdown(one), Text(""), *spread(one), phases(one), Text("")]
    if explain:
        shown += [terms(one.terms), Text("")]
    return Group(*shown, *footer(one))


def breakdown(one: Estimate) -> Group:
    """The card's memory by category, as bars against the whole card."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    totals = one.by_category()
    scale = max(one.capacity_bytes, one.device_total_bytes)
    found = [(name, totals[key], colour) for key, (name, colour) in CATEGORIES.items() if totals.get(key)]
    bars = alike([plain(size, scale, 48, colour) for _, size, colour in found])
    for (name, size, _), one_bar in zip(found, bars, strict=True):
        table.add_row(name, f"{size / GiB:.2f}", one_bar)
    table.add_row(Text("total", style="bold"), Text(f"{one.device_total_bytes / GiB:.2f}", style="bold"), "")
    on = f"card {one.fullest_card}, " if one.cards else ""
    when = f"Where it goes, GiB ({on}micro-batch {one.micro_batch_size}, peak in {one.peak_phase})"
    return Group(Text(when, style="bold"), table)


def spread(one: Estimate) -> list[RenderableType]:
    """What each of the cards holds and needs that a model is spread over; nothing where it is not."""
    if not one.cards:
        return []
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    table.add_column("card", justify="right", no_wrap=True)
    table.add_column("holds", overflow="fold")
    for name in ("weights", "allocated", "on the card", "free"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in one.cards:
        sizes = (each.parameter_bytes, each.peak_allocated_bytes, each.device_total_bytes)
        table.add_row(
            str(each.number),
            each.holds,
            *(gib(size) for size in sizes),
            free_gib(one.capacity_bytes - each.device_total_bytes) if each.fits else Text("no", style="red"),
            style="bold" if each.number == one.fullest_card else "",
        )
    return [Group(Text("Each card, GiB", style="bold"), table), Text("")]


def phases(one: Estimate) -> Text:
    """Allocated peak of each phase."""
    parts = [f"{name} {gib(size)}" for name, size in one.phases.items()]
    return Text("Phases, GiB: ", style="bold") + Text("  ".join(parts), style="not bold")


def terms(all_terms: Iterable[Term]) -> Table:
    """Every term down to tensors."""
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    table.add_column("MiB", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("what", overflow="fold")
    table.add_column("each", overflow="fold")
    for category, (name, colour) in CATEGORIES.items():
        mine = [term for term in all_terms if term.category == category and term.num_bytes]
        if not mine:
            continue
        total = sum(term.num_bytes for term in mine)
        table.add_row(f"{total / (1 << 20):,.1f}", "", Text(name, style=f"bold {colour}"), "")
        for term in mine:
            count = str(term.count) if term.count > 1 else ""
            table.add_row(f"{term.num_bytes / (1 << 20):,.1f}", count, term.label, Text(term.formula, style="dim"))
    return table


def footer(one: Estimate) -> list[RenderableType]:
    """Notes, and what the answer takes for granted."""
    notes: list[RenderableType] = [Text(f"Note: {note}", style="yellow") for note in one.notes]
    return [*notes, Text("Assumes: " + "; ".join(one.assumptions) + ".", style="dim")]


# -- lists -------------------------------------------------------------------------------------------------------------


def models(specs: Sequence[ModelSpec]) -> Table:
    """`vramplan models`: other names of the same below each, every one whole."""
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    table.add_column("model", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("architecture", no_wrap=True)
    for spec in specs:
        count = format_count(spec.num_parameters) if spec.num_parameters else ""
        table.add_row(spec.name, count, spec.model_type)
        for alias in spec.aliases:
            table.add_row(f"  = {alias}", style="dim")
    return table


def cards(all_cards: Sequence[Gpu]) -> Table:
    """`vramplan gpus`."""
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("card", overflow="fold")
    for name in ("CUDA GiB", "GB/s", "bf16 TF/s", "cc"):
        table.add_column(name, justify="right", no_wrap=True)
    for card in all_cards:
        bf16 = card.flops_per_second.get("bf16")
        table.add_row(
            card.name,
            card.title,
            free_gib(card.cuda_total_bytes),
            f"{card.bandwidth_bytes_per_second / 1e9:,.0f}",
            f"{bf16 / 1e12:,.0f}" if bf16 else "-",
            card.compute_capability or "-",
        )
    return table


def width() -> int:
    """Columns of the terminal, or of COLUMNS, or 80."""
    return console().width


def print_all(*shown: RenderableType) -> None:
    """Print to standard output."""
    out = console()
    for one in shown:
        out.print(one)


__all__ = ["cards", "estimate", "models", "print_all", "search"]
