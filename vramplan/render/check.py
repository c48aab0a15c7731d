"""`vramplan check` for a terminal: the verdict and the way out first, short enough for a launcher's log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from vramplan.frameworks.settings import Note
from vramplan.inputs.platforms import platform_notes
from vramplan.planner.undecided import Case
from vramplan.planner.verdict import Verdict
from vramplan.render import gpu_groups
from vramplan.render.changes import changes_table, way_lines, writes
from vramplan.render.check_words import (
    doubts_of_length,
    need_of_check,
    outcome_of_check,
    reason,
    shortest_tried,
    words_of_check,
)
from vramplan.render.data_set import data_set
from vramplan.render.figures import gib, sentence, time_of_step
from vramplan.render.read_as import read_as
from vramplan.render.terminal import (
    Answer,
    Box,
    Screen,
    all_assumptions,
    each_gpu,
    flow,
    held_by_others,
    inside,
    notes,
    plan_line,
    side_by_side,
    where_it_goes,
)
from vramplan.render.verdict import subject
from vramplan.render.ways_out import other_ways, shorter_samples, ways_out
from vramplan.units import counted

MORE = "where it goes, what else would help, every assumption"
MOST_LINES, BOX_FRAME = 12, 5
"""Lines of an answer without -v, and those of the box beside its own text: frame, verdict, bar, and the last line."""
CHANGES = 76
"""Columns of the changes that would help, if they stand beside another part."""
STYLES = {"warning": "bold yellow", "unknown": "bold red", "default": "cyan", "ignored": "dim"}


def answer(verdict: Verdict, verbose: bool = False) -> Answer:
    """Everything that `vramplan check` prints of one configuration."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        estimate, config = verdict.estimate, verdict.reading
        title = subject(estimate.model, verdict.card.title, estimate.job.num_gpus)
        box = Box(
            ", ".join(filter(None, (title, gpu_groups.of_group(verdict)))),
            outcome_of_check(verdict),
            need_of_check(verdict),
            estimate.capacity_bytes,
            min(verdict.spare_bytes, estimate.capacity_bytes),
            verdict=words_of_check(verdict),
            reason=reason(verdict),
        )
        read, lines = screen.text(f"Read as {read_as(verdict)}", "dim"), _box_lines(screen, verdict)
        remarks = _notes(screen, config.notes, verbose)
        guesses = platform_notes(verdict.card)  # are said whatever the room
        in_box = verdict.doubts if verdict.case_fits else verdict.plan_warnings
        others = [note for note in estimate.notes if note not in (*guesses, *in_box)]
        remarks += notes(screen, (*others, *held_by_others(estimate, verdict.card.held_bytes)))
        said = notes(screen, guesses)
        room = MOST_LINES - BOX_FRAME - _height([read, *said], screen.width) - _height(lines, inside(screen))
        brief = remarks if verbose or verdict.data is not None else _fitting(remarks, screen.width, room)
        rests_on = notes(screen, _rests_on(verdict))
        shown: list[RenderableType] = [
            read,
            box.panel(screen, lines),
            *said,
            *brief,
            *(rests_on if verbose or _height([*brief, *rests_on], screen.width) <= room else []),
            *_data_set(screen, verdict),
        ]
        if verbose:
            length = f"with {estimate.job.sequence_length:,} tokens" if shortest_tried(verdict) else ""
            ways, where = other_ways(verdict), where_it_goes(estimate, length)
            if ways:
                where_and_others = side_by_side(screen, lambda part: changes_table(part, verdict, ways), CHANGES, where)
                shown += [Text(""), where_and_others]
            else:
                shown += [Text(""), where(screen)]
        shown += each_gpu(screen, estimate)
        rest = len(remarks) - len(brief)
        more = f"-v: {counted(rest, 'more note')}, {MORE}" if rest else f"-v: {MORE}"
        return [*shown, *(all_assumptions(screen, estimate) if verbose else [screen.text(more, "dim")])]

    return Answer(lay_out)


def _cases(screen: Screen, verdict: Verdict) -> list[Text]:
    """The need for each value of what the configuration does not say, a line for each number of GPUs."""
    if len(verdict.cases) == 1:  # the verdict's own
        return []
    counts = sorted({case.num_gpus for case in verdict.cases})
    several_lengths = len({case.sequence_length for case in verdict.cases}) > 1
    if not several_lengths:
        pieces = [_need(screen, counted(case.num_gpus, "GPU"), case) for case in verdict.cases]
        return [flow([*pieces, screen.text("GiB of each; --num-gpus says how many", "dim")], inside(screen))]
    lines = [screen.text("The length of a sample is not said (--seq-len, --dataset). GiB by tokens:")]
    for count in counts:
        cases = [case for case in verdict.cases if case.num_gpus == count]
        pieces = [_need(screen, f"{case.sequence_length:,}", case) for case in cases]
        pieces = [screen.text(f"{counted(count, 'GPU')}:"), *pieces] if len(counts) > 1 else pieces
        lines.append(flow(pieces, inside(screen)))
    return lines


def _groups(screen: Screen, verdict: Verdict) -> list[Text]:
    """The need of each GPU of each group, and what is not known."""
    styles = {True: "green", None: "yellow", False: "red"}
    pieces = [screen.text(text, styles[fits]) for text, fits in gpu_groups.needs(verdict)]
    lines = flow([screen.text("GiB of each:"), *pieces], inside(screen))
    return [lines, *(screen.text(text, "yellow") for text in gpu_groups.remarks(verdict))]


def _need(screen: Screen, name: str, case: Case) -> Text:
    size = gib(case.need_bytes)
    return screen.text(f"{name}: {size}", "green") if case.fits else screen.text(f"{name}: {size} ✗", "red")


def _box_lines(screen: Screen, verdict: Verdict) -> list[Text]:
    """The batch plan, the evaluation if one runs, and what makes it fit."""
    job, estimate, size = verdict.estimate.job, verdict.estimate, verdict.reading.eval_batch_size
    lines = [plan_line(screen, job, job.micro_batch_size, job.gradient_accumulation_steps)]
    if (text := time_of_step(estimate)) and verdict.case_fits:
        lines.append(screen.text(sentence(text)))
    lines += _cases(screen, verdict) if verdict.cases else []
    lines += _groups(screen, verdict) if verdict.groups else []
    if verdict.evaluation_bytes is not None and size is not None:
        lines.append(Text(f"Evaluation of {counted(size, 'sample')} at once: {gib(verdict.evaluation_bytes)} GiB"))
    texts = [f"Not known: {note.key} {note.text}" for note in verdict.reading.notes if note.kind == "doubt"]
    texts += shorter_samples(verdict)
    if verdict.case_fits:
        texts += [*doubts_of_length(verdict), *verdict.doubts]
        return [*lines, *(screen.text(text, "yellow") for text in texts)]
    return [*lines, *(screen.text(text, "yellow") for text in texts), *_way_out(screen, verdict)]


def _data_set(screen: Screen, verdict: Verdict) -> list[RenderableType]:
    rows = data_set(verdict)
    return [Text(""), Text("Data set", "bold"), *(screen.text(row) for row in rows)] if rows else []


def _rests_on(verdict: Verdict) -> list[str]:
    """What has to come together for training not to fit, if samples may be shorter than the limit."""
    job, is_known = verdict.estimate.job, verdict.data is not None or verdict.reading.rows != "samples"
    if verdict.trains or is_known or job.sequence_length < 2 or verdict.shorter_length is not None:  # said in the box
        return []
    lengths = {case.sequence_length for case in verdict.cases}
    if len(lengths) > 1 or job.batches == "packed":
        return []
    source = "the limit" if "sequence_length" in verdict.reading.job else "a length that no setting says"
    return [f"counts samples of {job.sequence_length:,} tokens, {source}; --dataset FILE counts yours"]


def _way_out(screen: Screen, verdict: Verdict) -> list[Text]:
    """The changes, and that `--fix` writes them, where it does."""
    ways = ways_out(verdict)
    lines = [
        way_lines(screen, verdict, title, settings) if settings else screen.text(title, "bold")
        for title, settings in ways
    ]
    can_fit = verdict.plan is None and (verdict.search is None or verdict.search.recommended is not None)
    return lines if can_fit else [*lines, *writes(verdict)]


# -- notes -------------------------------------------------------------------------------------------------------------


def _height(texts: Iterable[Text], width: int) -> int:
    """Lines that texts take when they are wrapped."""
    return sum(-(-max(1, cell_len(line)) // width) for text in texts for line in text.plain.split("\n"))


def _fitting(remarks: Sequence[Text], width: int, room: int) -> list[Text]:
    """The first remarks that fit in so many lines; always one."""
    shown: list[Text] = []
    for remark in remarks:
        room -= _height([remark], width)
        if shown and room < 0:
            break
        shown.append(remark)
    return shown


def _notes(screen: Screen, all_notes: list[Note], verbose: bool) -> list[Text]:
    """What could make the answer wrong; with -v all of it, the framework's defaults and the keys without effect."""
    notes = [note for note in all_notes if note.kind not in ("doubt", "ignored", *(() if verbose else ("default",)))]
    shown: list[Text] = []
    for note in notes:
        name = f"{note.key} " if note.key else ""
        place = f"  [{note.place}]" if note.place and note.kind != "default" else ""
        shown.append(
            Text.assemble(
                screen.text(f"{note.kind}: ", STYLES[note.kind]), screen.text(f"{name}{note.text}"),
                screen.text(place, "dim"),
            )
        )  # fmt: skip
    ignored = [note.key for note in all_notes if note.kind == "ignored"]
    if ignored and verbose:
        shown.append(screen.text(f"no effect on memory: {', '.join(ignored)}", "dim"))
    return shown


__all__ = ["answer"]
