"""`vramplan check` for a terminal: the verdict and the way out first, short enough for a launcher's log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from vramplan.frameworks.settings import Note
from vramplan.inputs.platforms import platform_notes
from vramplan.planner.check import Verdict
from vramplan.planner.search_result import FREE, LeverEffect
from vramplan.planner.undecided import Case
from vramplan.render import gpu_groups
from vramplan.render.figures import free_gib, gib, sentence, time_of_step
from vramplan.render.read_as import read_as
from vramplan.render.script_lines import with_line
from vramplan.render.terminal import (
    Answer,
    Box,
    Screen,
    all_assumptions,
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
from vramplan.render.verdict import FRAGMENTED, Outcome, doubts, subject
from vramplan.units import counted

MORE = "where it goes, what else would help, every assumption"
MOST_LINES, BOX_FRAME = 12, 5
"""Lines of an answer without -v, and those of the box beside its own text: frame, verdict, bar, and the last line."""
CHANGES = 76
"""Columns of the changes that would help, if they stand beside another part."""
MOST_CHANGE = 50
"""Columns of a change with the line of the script where it stands."""
MOST_COST = 20
"""Columns of what a change costs."""
MOST_BOX_SETTINGS = 3
"""Settings of a way out that have room in the box."""
STYLES = {"warning": "bold yellow", "unknown": "bold red", "default": "cyan", "ignored": "dim"}
NEVER_EDITED = ("torchtitan",)
"""Frameworks whose configuration `--fix` does not write, besides those in Python."""


def answer(verdict: Verdict, verbose: bool = False) -> Answer:
    """Everything that `vramplan check` prints of one configuration."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        estimate, config = verdict.estimate, verdict.reading
        box = Box(
            subject(estimate.model, verdict.card.title, estimate.job.num_gpus),
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
        others = [note for note in estimate.notes if note not in guesses]
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
                where_and_others = side_by_side(screen, lambda part: _changes(part, verdict, ways), CHANGES, where)
                shown += [Text(""), where_and_others]
            else:
                shown += [Text(""), where(screen)]
        shown += each_gpu(screen, estimate)
        rest = len(remarks) - len(brief)
        more = f"-v: {counted(rest, 'more note')}, {MORE}" if rest else f"-v: {MORE}"
        return [*shown, *(all_assumptions(screen, estimate) if verbose else [screen.text(more, "dim")])]

    return Answer(lay_out)


def outcome_of_check(verdict: Verdict) -> Outcome:
    """Fits, depends, only without margin, or not."""
    if verdict.fits:
        return "fits"
    if verdict.depends:
        return "depends"
    without_margin = not verdict.estimate.fits and verdict.estimate.fits_without_margin
    return "without margin" if without_margin and verdict.free_bytes >= 0 else "does not fit"


def words_of_check(verdict: Verdict) -> str:
    """The verdict if it depends on what the configuration does not say, or never fits; empty for a plain one."""
    if shortest := shortest_tried(verdict):
        return f"DOES NOT FIT EVEN AT {shortest.sequence_length:,} TOKENS"
    if not verdict.depends:
        return ""
    if words := gpu_groups.undecided(verdict):
        return words.upper().replace("GPUS", "GPUs")
    job = verdict.estimate.job
    counts = {case.num_gpus for case in verdict.cases}
    lengths = [case.sequence_length for case in verdict.cases if case.num_gpus == job.num_gpus]
    words = f" up to {job.sequence_length:,} tokens" if len(lengths) > 1 else ""
    if len(counts) > 1:
        fitting = {case.num_gpus for case in verdict.cases if case.fits}
        on = counted(job.num_gpus, "GPU")
        words += f" on {on}" if words or fitting == {1} else f" from {on} on"
    return f"FITS{words.upper().replace('GPUS', 'GPUs')}"


def shortest_tried(verdict: Verdict) -> Case | None:
    """The shortest of several lengths, if it needs more than there is beside the margin; None if one length fits."""
    cases = [case for case in verdict.cases if case.num_gpus == verdict.estimate.job.num_gpus]
    shortest = min(cases, key=lambda case: case.sequence_length, default=None)
    if len(cases) < 2 or shortest is None or any(case.fits for case in verdict.cases):
        return None
    lengths = {case.sequence_length for case in cases}
    too_large = shortest.need_bytes > verdict.estimate.capacity_bytes - verdict.spare_bytes
    return shortest if len(lengths) > 1 and too_large else None


def need_of_check(verdict: Verdict) -> int:
    """Bytes that the headline is about: of the shortest length if not even that fits."""
    shortest = shortest_tried(verdict)
    return verdict.need_bytes if shortest is None else shortest.need_bytes


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


def reason(verdict: Verdict) -> str:
    """Why it does not fit, if it needs no more than the GPU has."""
    estimate = verdict.estimate
    if words := gpu_groups.failing(verdict):
        return words
    if shortest := shortest_tried(verdict):
        free, margin = estimate.capacity_bytes - shortest.need_bytes, gib(verdict.spare_bytes)
        return f"headroom {free_gib(free)}, less than the margin {margin}" if free >= 0 else ""
    if verdict.case_fits or verdict.free_bytes < 0 or outcome_of_check(verdict) == "without margin":
        return ""
    if not estimate.fits:
        return FRAGMENTED
    evaluates = (verdict.evaluation_bytes or 0) > estimate.device_total_bytes
    return f"{'evaluation' if evaluates else 'the free space asked for'} has too little room"


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
        texts += doubts(estimate) if len({case.sequence_length for case in verdict.cases}) < 2 else []
        return [*lines, *(screen.text(text, "yellow") for text in texts)]
    return [*lines, *(screen.text(text, "yellow") for text in texts), *_way_out(screen, verdict)]


def shorter_samples(verdict: Verdict) -> list[str]:
    """Samples that fit, if the limit that all are counted at does not."""
    if verdict.shorter_length is None:
        return []
    limit, shorter = verdict.estimate.job.sequence_length, verdict.shorter_length
    return [f"Samples of {limit:,} tokens, the limit, are counted; of {shorter:,} fit (--dataset)"]


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
    """The fewest changes, and that `--fix` makes them, where it does."""
    ways = ways_out(verdict)
    lines = [
        _fix(screen, verdict, title, settings) if settings else screen.text(title, "bold") for title, settings in ways
    ]
    can_fit = verdict.plan is None and (verdict.search is None or verdict.search.recommended is not None)
    return lines if can_fit else [*lines, *_writes(verdict)]


def ways_out(verdict: Verdict) -> list[tuple[str, list[str]]]:
    """The fewest changes at the same global batch: what they do, and lines in the framework's own words."""
    config, ways = verdict.reading, list[tuple[str, list[str]]]()
    if verdict.eval_batch_size:
        settings = config.say({"eval_batch_size": verdict.eval_batch_size})
        ways.append((f"Evaluation of {counted(verdict.eval_batch_size, 'sample')} at once fits", settings))
    if verdict.plan is not None:
        plan = verdict.plan
        batch = {
            "micro_batch_size": plan.micro_batch_size,
            "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        }
        size = gib(plan.estimate.device_total_bytes)
        settings = config.say(batch)
        settings = ["  ".join(settings)] if verdict.advice else settings  # there is a second way
        job = verdict.estimate.job
        several = len({case.sequence_length for case in verdict.cases}) > 1
        at_length = f" with {job.sequence_length:,} tokens" if several else ""
        negatives = [change for change in verdict.advice if "mini_batch_size" in change.update]
        for change in negatives:
            title = f"Same micro-batch and negatives, fits at {gib(change.device_total_bytes)} GiB{at_length}"
            ways.append((f"{title}, costs {change.cost}", [*change.settings]))
        ways.append((f"Same global batch, fits at {size} GiB{at_length}", settings))
        ways += [(f"But {text}", []) for text in verdict.plan_warnings]
        for change in [change for change in verdict.advice if change.cost == FREE][:1]:
            need, words = gib(change.device_total_bytes), "  ".join(change.settings)
            ways.append((f"Or free, {need} GiB at micro-batch {change.micro_batch_size}: {words}", []))
        return ways
    if verdict.search is None:
        return ways
    if verdict.search.recommended is not None:
        why = (
            "Training fits; an evaluation does not, even of 1 sample"
            if verdict.eval_batch_size == 0
            else "What is missing PyTorch caches, and gives back on a fuller GPU; it fits without --min-headroom"
        )
        return [*ways, (why, [])]
    first = first_change(verdict)
    if first is None:
        known = "no change that was tried is enough" if verdict.advice else "nothing else helps"
        return [*ways, (f"No micro-batch fits at this global batch; {known}", [])]
    cost = "free" if first.cost == FREE else f"costs {first.cost}"
    at_length = f" with {verdict.estimate.job.sequence_length:,} tokens" if shortest_tried(verdict) else ""
    title = f"No micro-batch fits{at_length}. Cheapest change, {gib(first.device_total_bytes)} GiB, {cost}"
    return [*ways, (title, [*first.settings, *first.batch])]


def _writes(verdict: Verdict) -> list[Text]:
    """That `--fix` exists, if it edits what was given."""
    edits = verdict.reading.spelling != "python" and verdict.reading.framework not in NEVER_EDITED
    return [Text("--fix prints the fewest changes", "dim")] if edits else []


def _fix(screen: Screen, verdict: Verdict, title: str, settings: Sequence[str]) -> Text:
    single, rest = settings[:MOST_BOX_SETTINGS], settings[MOST_BOX_SETTINGS:]
    lines = [*(setting.split("  ") for setting in single), *([rest] if rest else [])]
    shown = [screen.text(f"  {_placed(verdict, line, inside(screen) - 2)}") for line in lines]
    return Text("\n").join([screen.text(f"{title}:", "bold"), *shown])


def _placed(verdict: Verdict, settings: Sequence[str], width: int) -> str:
    """Settings on one line, with the line of the script where they stand if there is room for it."""
    text, placed = "  ".join(settings), with_line(verdict.reading, settings)
    return placed if cell_len(placed) <= width else text


def first_change(verdict: Verdict) -> LeverEffect | None:
    """The first change of a setting that makes it fit; the list is ordered by what changes cost."""
    return next((counsel for counsel in verdict.advice if counsel.fits and counsel.settings), None)


def other_ways(verdict: Verdict) -> list[LeverEffect]:
    """Changes beside the cheapest, if no micro-batch fits."""
    if verdict.search is None or verdict.search.recommended is not None or verdict.plan is not None:
        return []
    return [counsel for counsel in verdict.advice if counsel is not first_change(verdict)]


def _changes(screen: Screen, verdict: Verdict, advice: list[LeverEffect]) -> Group:
    """Changes, cheapest first, each with the batch that its figure is for."""
    batch = advice[0].batch
    details = [*([f"each with {', '.join(batch)}"] if batch else [])]
    title = Text.assemble(("What would help", "bold"), (f", GiB{''.join(f', {one}' for one in details)}", "dim"))
    changes = [
        [_placed(verdict, [setting], MOST_CHANGE) for setting in counsel.settings] or [f"on {counsel.card}"]
        for counsel in advice
    ]
    if screen.narrow:
        rows = []
        for counsel, change in zip(advice, changes, strict=True):
            verb = "fits" if counsel.fits else "does not fit"
            need = gib(counsel.device_total_bytes)
            rows.append((f"{'  '.join(change)}: {need}, {verb}; costs: {counsel.cost}", ""))
        return Group(title, hanging(screen, rows))
    table = simple_table("change", ("then", "right"), "fits", "costs")
    for counsel, change in zip(advice, changes, strict=True):
        table.add_row(
            Text("\n").join(screen.text(line) for line in change),
            gib(counsel.device_total_bytes),
            Text("yes", "green") if counsel.fits else Text("no", "red"),
            Text(fill(counsel.cost, MOST_COST), "dim"),
        )
    return Group(title, indented(table))


# -- the data set ------------------------------------------------------------------------------------------------------

QUANTILES = {"P50": 0.5, "P95": 0.95, "P99": 0.99}


def _data_set(screen: Screen, verdict: Verdict) -> list[RenderableType]:
    rows = data_set(verdict)
    return [Text(""), Text("Data set", "bold"), *(screen.text(row) for row in rows)] if rows else []


def data_set(verdict: Verdict) -> list[str]:
    """How long the samples are, and what that makes of the batches; nothing without a data set."""
    data = verdict.data
    if data is None:
        return []
    lengths = {name: data.distribution.quantile(share) for name, share in QUANTILES.items()}
    lengths |= {"longest": data.distribution.longest, "limit": data.limit}
    rows = [
        f"{data.lengths.path.name}: {data.distribution.samples:,} samples, their tokens {data.lengths.source}",
        "Tokens: "
        + ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        + (f"; {data.completion:,} of each are its completion's" if data.completion else ""),
    ]
    longer = data.distribution.count_longer(data.limit)
    if longer:
        fate = "dropped" if data.drops_longer else "cut"
        rows.append(f"{percent(longer / data.distribution.samples)} are longer than the limit ({longer:,}): {fate}")
    padding = {"samples": "", "padded": ", every row padded to the limit", "packed": ", rows packed full"}[data.rows]
    rows.append(f"Longest row of a batch: {data.worst_length:,} tokens{padding}")
    trained = "all" if data.trained_samples == data.distribution.samples else f"{data.trained_samples:,}"
    rows.append(f"An epoch over {trained} of them: {counted(data.steps_per_epoch, 'step')}")
    if data.padding_share:
        rows.append(
            f"A batch of {data.micro_batch_size} is padded to {data.padded_to:,.0f} tokens on average,"
            f" {percent(data.padding_share)} of which is padding"
        )
    if data.near_share is not None:
        rows.append(f"{percent(data.near_share)} of all batches need 95% or more of what the longest needs")
    if data.fitting_length:
        over = data.distribution.count_longer(data.fitting_length) / data.distribution.samples
        words = "  ".join(verdict.reading.say({"sequence_length": data.fitting_length}))
        rows.append(
            f"Up to {data.fitting_length:,} tokens would fit ({words}): {percent(over)} of the samples are longer"
        )
    elif data.fitting_length == 0:
        rows.append("No length would fit at this micro-batch")
    return rows


def percent(share: float) -> str:
    """A share that is never rounded to none or all.

    >>> percent(0.00003), percent(0.5)
    ('under 0.1%', '50.0%')
    """
    if 0 < share < 0.001:
        return "under 0.1%"
    return "over 99.9%" if 0.999 < share < 1 else f"{share:.1%}"


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


__all__ = [
    "answer",
    "data_set",
    "need_of_check",
    "other_ways",
    "outcome_of_check",
    "reason",
    "ways_out",
    "words_of_check",
]
