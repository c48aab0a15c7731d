"""What `check`, `fix` and `explain` found, as HTML in notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from vramplan.render import gpu_groups, out_of_memory
from vramplan.render.check_words import doubts_of_length, need_of_check, outcome_of_check, reason, words_of_check
from vramplan.render.data_set import data_set
from vramplan.render.figures import gib, room_gib
from vramplan.render.fix import summary
from vramplan.render.python_words import in_python
from vramplan.render.read_as import read_as
from vramplan.render.verdict import SIGNS, need_of_capacity, room
from vramplan.render.ways_out import other_ways, shorter_samples, ways_out
from vramplan.render.web.answer import Answer, assumptions, banner, facts, note_lines, pictures, row, section, table
from vramplan.units import counted
from vramplan.visible import visible

if TYPE_CHECKING:
    from vramplan.frameworks.settings import Note
    from vramplan.planner.fix import Fix
    from vramplan.planner.out_of_memory import Explanation
    from vramplan.planner.verdict import Verdict


def of_check(verdict: Verdict) -> Answer:
    """The verdict on a configuration, the way out, what could turn it, and where the memory goes."""
    estimate, result = verdict.estimate, outcome_of_check(verdict)
    words = words_of_check(verdict).capitalize().replace("gpu", "GPU") or SIGNS[result][1]
    size = need_of_capacity(need_of_check(verdict), estimate.capacity_bytes)
    head = banner(estimate, result, words, size, verdict.card.title)
    head += f'<p class="what">{escape(visible(estimate.model))}, read as {escape(visible(read_as(verdict)))}</p>'
    head += facts(estimate, _room(verdict))
    head += note_lines(map(in_python, [*_cases(verdict), *_groups(verdict), *_evaluation(verdict), *_doubts(verdict)]))
    if not verdict.case_fits:
        head += "".join(_way_out(title, settings) for title, settings in ways_out(verdict))
    notes = [note for note in verdict.reading.notes if note.kind in ("unknown", "warning")]
    in_head = verdict.doubts if verdict.case_fits else verdict.plan_warnings
    others = [note for note in estimate.notes if note not in in_head]
    head += note_lines(map(in_python, [*map(_note, notes), *others]))
    details = _data_set(verdict) + _changes(verdict) + assumptions(estimate, _rest(verdict.reading.notes))
    return Answer(head, pictures(estimate), details)


def of_fix(fix: Fix) -> Answer:
    """What was changed, and the verdict on the text as it is now."""
    head = f"<p>{escape(visible(summary(fix.after.reading.framework, fix).splitlines()[0]))}</p>"
    if fix.changes:
        rows = [
            row((change.key, "not set" if change.before is None else change.before, change.after, change.cost), "")
            for change in fix.changes
        ]
        head += section("Changes", "", table(("setting", "before", "after", "costs"), rows, "changes"))
        head += section("As it is now", "", f'<pre class="keys">{escape(visible_text(fix.text))}</pre>')
    after = of_check(fix.after)
    return Answer(head + f"<section>{after.head}</section>", after.pictures, after.details)


def of_failure(found: Explanation) -> Answer:
    """What ran out, which tensor asked, why, and the verdict on the configuration if one was given."""
    head = f'<div class="verdict bad"><h1>{escape(visible(out_of_memory.title_of(found.failure)))}</h1></div>'
    head += "".join(f"<p>{escape(visible(text))}</p>" for text, _ in out_of_memory.lines_of(found))
    for cause in found.causes:
        changes = cause.changes[: out_of_memory.MOST_CHANGES]
        head += _way_out(cause.text[:1].upper() + cause.text[1:], changes)
    if reason := out_of_memory.by_size(found):
        head += note_lines([reason])
    if found.verdict is None:
        text = "explain(log, config=...) with the run's configuration finds the tensor and the changes that fit"
        return Answer(f'{head}<p class="cap">{text}</p>', "", "")
    checked = of_check(found.verdict)
    return Answer(head + f"<section>{checked.head}</section>", checked.pictures, checked.details)


def visible_text(text: str) -> str:
    """A text of several lines without characters that change how it is shown."""
    return "\n".join(map(visible, text.splitlines()))


def _room(verdict: Verdict) -> tuple[str, str, str]:
    """The headroom at the fullest moment: a title, GiB, and how much of them is the margin."""
    capacity, need = verdict.estimate.capacity_bytes, need_of_check(verdict)
    text = room(
        outcome_of_check(verdict),
        need,
        capacity,
        min(verdict.spare_bytes, capacity),
        reason(verdict),
    )
    free = room_gib(capacity, need)
    if need > capacity:
        return "Too much", f"{free.lstrip('-')} GiB", "more than there is"
    return "Headroom", f"{free} GiB", escape(text.partition(", ")[2] or text.removeprefix(f"headroom {free}"))


def _cases(verdict: Verdict) -> list[str]:
    """The need for each value of what the configuration does not say."""
    lengths = {case.sequence_length for case in verdict.cases}
    counts = {case.num_gpus for case in verdict.cases}
    unsaid = [
        *(["the length of a sample (sequence_length=, dataset=)"] if len(lengths) > 1 else []),
        *(["the number of GPUs (num_gpus=)"] if len(counts) > 1 else []),
    ]
    if not unsaid:
        return []
    sizes = []
    for case in verdict.cases:
        length = f"{case.sequence_length:,} tokens" if len(lengths) > 1 else ""
        count = counted(case.num_gpus, "GPU") if len(counts) > 1 else ""
        name = " on ".join(filter(None, (length, count)))
        sizes.append(f"{name}: {gib(case.need_bytes)}{'' if case.fits else ' ✗'}")
    return [f"Not said: {' and '.join(unsaid)}. GiB of each GPU: {'; '.join(sizes)}"]


def _groups(verdict: Verdict) -> list[str]:
    """The need of each GPU of each group of the run, and what is not known."""
    sizes = [text for text, _ in gpu_groups.needs(verdict)]
    return [*([f"GiB of each GPU: {'; '.join(sizes)}"] if sizes else []), *gpu_groups.remarks(verdict)]


def _evaluation(verdict: Verdict) -> list[str]:
    size = verdict.reading.eval_batch_size
    if verdict.evaluation_bytes is None or size is None:
        return []
    return [f"Evaluation of {counted(size, 'sample')} at once: {gib(verdict.evaluation_bytes)} GiB"]


def _doubts(verdict: Verdict) -> list[str]:
    texts = [f"Not known: {note.key} {note.text}" for note in verdict.reading.notes if note.kind == "doubt"]
    texts += shorter_samples(verdict)
    return [*texts, *((*doubts_of_length(verdict), *verdict.doubts) if verdict.case_fits else [])]


def _note(note: Note) -> str:
    place = f" ({note.place})" if note.place else ""
    return f"{note.kind}: {note.key} {note.text}{place}"


def _rest(notes: Iterable[Note]) -> list[str]:
    """The framework's defaults, and the keys without effect."""
    notes = [*notes]
    ignored = [note.key for note in notes if note.kind == "ignored"]
    defaults = [f"default: {note.key} {note.text}" for note in notes if note.kind == "default"]
    return [*defaults, *([f"no effect on memory: {', '.join(ignored)}"] if ignored else [])]


def _way_out(title: str, settings: Iterable[str]) -> str:
    lines = "\n".join(map(visible, settings))
    pasted = f'<pre class="keys">{escape(lines)}</pre>' if lines else ""
    return f'<p class="lever"><span>{escape(in_python(visible(title)))}</span></p>{pasted}'


def _data_set(verdict: Verdict) -> str:
    rows = data_set(verdict)
    return section("Data set", "", "".join(f"<p>{escape(visible(text))}</p>" for text in rows)) if rows else ""


def _changes(verdict: Verdict) -> str:
    """Other changes that would help, the cheapest first."""
    rows = [
        row(
            (
                "  ".join(change.settings) or f"on {change.card}",
                gib(change.device_total_bytes),
                "yes" if change.fits else "no",
                change.cost,
            ),
            "",
        )
        for change in other_ways(verdict)
    ]
    return section("What else would help", "GiB", table(("change", "then", "fits", "costs"), rows)) if rows else ""


__all__ = ["of_check", "of_failure", "of_fix"]
