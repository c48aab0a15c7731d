"""The answer of a search or an estimate as HTML: the verdict first, then what explains it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from vramplan.planner.search_result import WITHOUT_MARGIN, LeverEffect, Plan, Search
from vramplan.render.figures import (
    KEYS,
    banded,
    duration,
    filled_by_tokens,
    free_gib,
    gib,
    in_short,
    parts,
    replicas,
    room_gib,
    sentence,
    significant,
    time_of_step,
)
from vramplan.render.headline import Headline, headlines
from vramplan.render.verdict import FRAGMENTED, SIGNS, Outcome, doubts, need_of_capacity, outcome
from vramplan.render.web.bar import bar
from vramplan.render.web.step_chart import step_chart
from vramplan.render.web.step_profile import step_profile
from vramplan.units import format_count
from vramplan.visible import visible

if TYPE_CHECKING:
    from vramplan.memory.estimate import Estimate

CLASSES: dict[Outcome, str] = {"fits": "good", "without margin": "warn", "depends": "warn", "does not fit": "bad"}


class Answer(NamedTuple):
    """An answer as HTML, in the parts that a page places; a notebook shows one below the other."""

    head: str
    """The verdict, the plan, the best change."""
    pictures: str
    details: str
    """All plans, all changes, assumptions."""


def fragment(answer: Answer) -> str:
    """An answer as one piece of HTML whose parts a page can take apart by their names."""
    return "".join(f'<div data-part="{name}">{html}</div>' for name, html in answer._asdict().items())


def of_search(search: Search, micro_batch_size: int | None = None) -> Answer:
    """The recommended plan, or that with another micro-batch, and the changes that would help."""
    plans = {plan.micro_batch_size: plan.estimate for plan in search.plans}
    chosen = search.recommended
    estimate = plans.get(micro_batch_size or 0) or (chosen.estimate if chosen is not None else search.smallest)
    return Answer(
        verdict(estimate, search.card.title, [*_notes(estimate), *search.warnings])
        + "".join(_headline(headline) for headline in headlines(search)),
        pictures(estimate),
        _plans(search, estimate) + _changes(search) + assumptions(estimate, search.guidance),
    )


def of_estimate(estimate: Estimate) -> Answer:
    """The verdict on one job, and what explains it."""
    head = verdict(estimate, estimate.card_title, _notes(estimate))
    return Answer(head, pictures(estimate), assumptions(estimate))


def verdict(estimate: Estimate, gpu: str, notes: Iterable[str]) -> str:
    """Fits or not, of what, the plan, the headroom, the time of a step, and what could turn it."""
    result = outcome(estimate)
    title = "Headroom" if estimate.headroom_bytes >= 0 else "Too much"
    size = need_of_capacity(estimate.device_total_bytes, estimate.capacity_bytes)
    sizes = (estimate.job.micro_batch_size, estimate.job.gradient_accumulation_steps)
    settings = "\n".join(f"{key} {size}" for key, size in zip(KEYS, sizes, strict=True))
    what = f"{estimate.model}: {', '.join(in_short(estimate))}"
    return (
        banner(estimate, result, SIGNS[result][1], size, gpu)
        + f'<p class="what">{escape(visible(what))}</p>'
        + facts(estimate, (title, *_room(estimate)))
        + f'<pre class="keys">{settings}</pre>'
        + note_lines(notes)
    )


def banner(estimate: Estimate, result: Outcome, words: str, size: tuple[str, str], gpu: str) -> str:
    """The verdict; `size` is GiB of the need and of the GPU."""
    need, capacity = size
    gpus = f"{estimate.job.num_gpus} × {gpu}" if estimate.job.num_gpus > 1 else gpu
    return (
        f'<div class="verdict {CLASSES[result]}" data-length="{estimate.job.sequence_length}">'
        f'<h1><span class="sign" aria-hidden="true">{SIGNS[result][0]}</span>{escape(words)}</h1>'
        f'<p class="need"><b title="{_totals(estimate)}">{need} GiB</b> of {capacity} on {escape(gpus)}</p></div>'
    )


def facts(estimate: Estimate, room: tuple[str, str, str]) -> str:
    """The plan, the headroom and the time of a step."""
    job = estimate.job
    factors = [job.micro_batch_size, job.gradient_accumulation_steps, job.data_parallel]
    product = '<span class="x">×</span>'.join(str(factor) for factor in factors)
    plan = filled_by_tokens(job) or (
        f'{product}<span class="x">=</span>{job.global_batch_size:,}',
        f"micro-batch × accumulation × {replicas(job)} = global batch",
    )
    listed = [
        ("Plan", *plan),
        room,
        ("Optimizer step", *_time(estimate)),
    ]  # fmt: skip
    texts = "".join(f"<div><dt>{title}</dt><dd>{text}<small>{more}</small></dd></div>" for title, text, more in listed)
    return f'<dl class="facts">{texts}</dl>'


def note_lines(notes: Iterable[str]) -> str:
    """Notes, each in a line of its own."""
    return "".join(f'<p class="note">{escape(sentence(visible(text)))}</p>' for text in notes)


def _room(estimate: Estimate) -> tuple[str, str]:
    """GiB that are free or too much, and how much of them is the margin."""
    if estimate.headroom_bytes < 0:
        return f"{room_gib(estimate.capacity_bytes, estimate.device_total_bytes).lstrip('-')} GiB", "more than there is"
    left = room_gib(estimate.capacity_bytes, estimate.device_total_bytes)
    if estimate.fits:
        margin = min(gib(estimate.margin_bytes), left, key=float)
        return f"{left} GiB", f"of which margin {margin}" if estimate.margin_bytes else "no margin asked for"
    if estimate.fits_without_margin:
        return f"{left} GiB", f"less than the margin {gib(estimate.margin_bytes)}"
    return f"{left} GiB", FRAGMENTED


def _time(estimate: Estimate) -> tuple[str, str]:
    time = estimate.step_time
    if time is None:
        rollout = estimate.job.generates_completions
        return "not known", "how long completions take is not known" if rollout else "no rates of this GPU are known"
    text = time_of_step(estimate).removeprefix("about ")
    rest = text.partition(" a step")[2].removeprefix(", ")
    band = banded(time.seconds, time.relative_error)
    seconds, _, spread = band.partition(" (")
    return f"≈ {seconds}", ", ".join(part for part in (spread.rstrip(")"), rest) if part)


def _totals(estimate: Estimate) -> str:
    """What other tools would say: the headline number is the need of the GPU."""
    return (
        f"Reserved by PyTorch and the CUDA context. max_memory_allocated {gib(estimate.peak_allocated_bytes)},"
        f" max_memory_reserved {gib(estimate.peak_reserved_bytes)}"
    )


def _notes(estimate: Estimate) -> list[str]:
    return [*doubts(estimate), *estimate.notes]


def _headline(headline: Headline) -> str:
    """A change beside the verdict; the site has a button for one that sets fields of the job."""
    title = f"<b>{escape(headline.title)}:</b> " if headline.title else ""
    change = headline.change
    update: dict[str, Any] = {} if change is None else dict(change.update)
    button = f" data-apply='{escape(json.dumps(update))}'" if update else ""
    return f'<p class="lever"{button}><span>{title}{escape(headline.text)}</span></p>'


def pictures(estimate: Estimate) -> str:
    """Where the memory goes, and memory over a step."""
    profile = step_profile(estimate)
    chart = ""
    if profile is not None:
        between = estimate.gradient_accumulation_steps > 2
        caption = "GiB above what stays, in order of allocation" + (
            f"; micro-steps 2 to {estimate.gradient_accumulation_steps - 1} are like the first" if between else ""
        )
        chart = section("Memory over one optimizer step", caption, step_chart(estimate, profile))
    caption = f"GiB at the fullest moment, in {estimate.peak_phase}; the parts sum to {parts(estimate)[1] / 100:.2f}"
    return section("Where it goes", caption, bar(estimate)) + chart


def section(title: str, caption: str, body: str) -> str:
    """A part of an answer under a title."""
    small = f' <span class="cap">{escape(caption)}</span>' if caption else ""
    return f"<section><h2>{escape(title)}{small}</h2>{body}</section>"


def _plans(search: Search, shown: Estimate) -> str:
    """All pairs that meet the global batch."""
    rows = [_plan(plan, plan.estimate is shown) for plan in search.plans]
    for pair in search.rejected:
        need = "" if pair.device_total_bytes is None else gib(pair.device_total_bytes)
        words = "only without margin" if pair.reason == WITHOUT_MARGIN else "does not fit"
        kind = "warn" if pair.reason == WITHOUT_MARGIN else "bad"
        cells = (pair.micro_batch_size, pair.gradient_accumulation_steps, need, words, "")
        rows.append(row(cells, kind))
    head = ("micro-batch", "accumulation", "GiB", "free", "step")
    return section(f"Plans for a global batch of {search.global_batch_size:,}", "", table(head, rows))


def _plan(plan: Plan, is_shown: bool) -> str:
    estimate = plan.estimate
    need, capacity = estimate.device_total_bytes, estimate.capacity_bytes
    time = estimate.step_time
    step = f"{significant(plan.relative_step_time)} ×" if time is None else duration(time.seconds)
    cells = (plan.micro_batch_size, plan.gradient_accumulation_steps, gib(need), room_gib(capacity, need), step)
    return row(cells, "shown" if is_shown else "")


def _changes(search: Search) -> str:
    """Every change that would help, cheapest first."""
    if not search.advice:
        return ""
    rows = [
        row(_change(change), "", json.dumps(dict(change.update)) if change.update else "") for change in search.advice
    ]
    micro = search.advice[0].micro_batch_size
    head = ("change", "saves", "then", "fits", "costs")
    return section("What would help", f"GiB at micro-batch {micro}", table(head, rows, "changes"))


def _change(change: LeverEffect) -> tuple[str, ...]:
    saves = free_gib(change.saved_bytes) if change.saved_bytes > 0 else ""
    return change.change, saves, gib(change.device_total_bytes), "yes" if change.fits else "no", change.cost


def assumptions(estimate: Estimate, guidance: Sequence[str] = ()) -> str:
    """What was taken for granted, folded; guidance on batches with it."""
    count, trained = format_count(estimate.num_parameters), format_count(estimate.num_trainable_parameters)
    texts = [f"{count} parameters, {trained} train", _totals(estimate), *estimate.assumptions, *guidance]
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<details><summary>Assumptions and details</summary><ul>{items}</ul></details>"


def row(cells: Iterable[object], kind: str, apply: str = "") -> str:
    """A row of a table; the site has a button for one with settings to `apply`, as JSON."""
    button = f" data-apply='{escape(apply)}'" if apply else ""
    inside = "".join(f"<td>{_flags(str(cell))}</td>" for cell in cells)
    return f'<tr class="{kind}"{button}>{inside}</tr>'


def _flags(text: str) -> str:
    """A text in which no flag is broken from its value."""
    parts = re.split(r" (?=--)", text)
    return " ".join(f"<code>{escape(part)}</code>" if part.startswith("--") else escape(part) for part in parts)


def table(head: Iterable[str], rows: Iterable[str], kind: str = "") -> str:
    """A table of the names of its columns and rows."""
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    body = f"<thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table class="{kind}">{body}</table></div>'


__all__ = [
    "CLASSES",
    "Answer",
    "assumptions",
    "banner",
    "facts",
    "fragment",
    "note_lines",
    "of_estimate",
    "of_search",
    "pictures",
    "row",
    "section",
    "table",
    "verdict",
]
