"""`vramplan oom` for a terminal: what ran out, which tensor asked, why at that step, and what to change."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from vramplan.planner.out_of_memory import Explanation
from vramplan.planner.verdict import Verdict
from vramplan.render import check
from vramplan.render.figures import sentence
from vramplan.render.host import host_words
from vramplan.render.terminal import Answer, Screen, hanging, inside
from vramplan.training_log import Figures, OutOfMemory
from vramplan.units import GiB, counted, format_bytes

BEYOND = 1.2
"""Times the estimate's peak from which the run is called another one."""
NOT_ESTIMATED = {"saving": "saving a checkpoint", "generation": "generation", "loading": "loading"}
"""Phases that may need more than the estimate of the training says -> in words."""
MOST_CHANGES = 4
"""Changes that are printed of each reason."""


def answer(found: Explanation, verbose: bool = False) -> Answer:
    """Everything that `vramplan oom` prints."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        shown: list[RenderableType] = [_box(screen, found)]
        for cause in found.causes[1:]:
            shown.append(screen.text(f"Also: {cause.text}", "yellow"))
            shown += _changes(screen, cause.changes)
        if found.verdict is None:
            shown.append(
                screen.text("--config FILE, the run's configuration, finds the tensor and the changes that fit", "dim")
            )
        else:
            shown += [Text(""), check.answer(found.verdict, verbose)]
        if verbose:
            shown += _details(screen, found.failure)
        return shown

    return Answer(lay_out)


def _box(screen: Screen, found: Explanation) -> Panel:
    failure = found.failure
    lines = [screen.text(text, style) for text, style in lines_of(found)]
    if found.causes:
        first = found.causes[0]
        lines += [screen.text(sentence(first.text), "bold"), *_changes(screen, first.changes)]
    if found.host is not None:
        lines.append(screen.text(f"{host_words(found.host)}, by estimate; data loaders and the data set come on top"))
    if reason := by_size(found):
        lines.append(screen.text(reason, "" if found.causes else "bold"))
    title = screen.text(title_of(failure), "bold default")
    above = title.cell_len + 2 <= inside(screen)
    return Panel(
        Group(*([] if above else [title]), *lines),
        width=inside(screen) + 4,
        border_style="red",
        title=title if above else None,
        title_align="left",
    )


def by_size(found: Explanation) -> str:
    """What the size of the job says of the failure; empty if another cause says enough."""
    if found.verdict is not None and found.verdict.fits and found.failure.memory == "gpu":
        return _although_it_fits(found.failure, found.verdict)
    if found.causes:
        return ""
    if found.verdict is not None:
        return "By estimate this configuration does not fit"
    if found.failure.figures.requested is None:
        return "The message tells neither sizes nor a reason"
    return "The message shows no other reason than the size of the job"


def _although_it_fits(failure: OutOfMemory, verdict: Verdict) -> str:
    """The contradiction between a log that ran out and an estimate that fits, and what may be behind it."""
    fits = (
        f"By estimate this configuration fits, {verdict.need_bytes / GiB:.1f} GiB of"
        f" {verdict.estimate.capacity_bytes / GiB:.1f}"
    )
    held, phase = failure.figures.allocated, NOT_ESTIMATED.get(failure.phase or "")
    peak = max(verdict.estimate.peak_allocated_bytes, verdict.estimate.evaluation_bytes)
    if phase is None and held is not None and held.low > BEYOND * peak:
        return (
            f"{fits}, at most {peak / GiB:.1f} of it in tensors, where the log has {held.num_bytes / GiB:.1f}: the run"
            " had other settings, longer samples or another model, kept tensors from step to step, or the estimate is"
            " too low"
        )
    return (
        f"{fits}, and yet the run ran out: {f'{phase} is not part of it; ' if phase is not None else ''}samples longer"
        " than it says, another process at that moment, a setting that the file does not hold, or an estimate that is"
        " too low"
    )


def title_of(failure: OutOfMemory) -> str:
    """Where and when memory ran out."""
    if failure.memory == "host":
        place = "Host out of memory"
    else:
        place = f"GPU {failure.gpu} out of memory" if failure.gpu is not None else "GPU out of memory"
    parts = [place, *([f"rank {failure.rank}"] if failure.rank is not None else []), *when(failure)]
    return ", ".join(parts)


def when(failure: OutOfMemory) -> list[str]:
    """The phase and the step of a message, if the log tells them."""
    phase = [f"in {failure.phase}" if failure.phase != "optimizer states" else "making optimizer states"]
    bar = next(iter(failure.progress), None)
    step = []
    if bar is not None and failure.phase != "evaluation":  # its own bar counts batches
        is_within = bar.total is not None and bar.done < bar.total
        step = [f"step {bar.done + 1:,} of {bar.total:,}" if is_within else f"after {bar.done:,} steps"]
    return [*(phase if failure.phase is not None else []), *step]


def lines_of(found: Explanation) -> Iterable[tuple[str, str]]:
    """What was asked for, and which tensor that was."""
    figures = found.failure.figures
    if figures.requested is not None:
        room = ""
        if figures.free is not None and figures.capacity is not None:
            room = f"; {figures.free.num_bytes / GiB:.2f} GiB of {figures.capacity.num_bytes / GiB:.2f} were free"
        yield f"Asked for {format_bytes(figures.requested.num_bytes)}{room}", ""
    if used := _used(figures):
        yield used, ""
    tensor = found.allocation
    if tensor is not None:
        was = "It was" if tensor.is_sure else "Most likely"
        yield f"{was} {tensor.label}: {tensor.formula}, {format_bytes(tensor.num_bytes)}, in {tensor.phase}", "bold"
        assert found.verdict is not None
        longest = found.verdict.estimate.job.sequence_length
        if tensor.sequence_length != longest:
            yield (
                (
                    f"That fits samples of about {tensor.sequence_length:,} tokens, where the configuration's limit is"
                    f" {longest:,}"
                ),
                "",
            )
    elif found.was_searched:
        yield "No tensor of the simulated step has this size with so much memory in use", "dim"
    if found.failure.went_on is not None:
        yield (
            f"The log counts on after this message, to step {found.failure.went_on:,} at least: the batch was skipped"
            " or made smaller (auto_find_batch_size), or another run follows",
            "",
        )
    if found.others:
        yield f"{counted(found.others, 'other message')} in the log, of other ranks or kinds", "dim"


def _used(figures: Figures) -> str:
    """Where the memory is, as the message tells."""
    sizes = (
        ("tensors", figures.allocated),
        ("cached by PyTorch", figures.unallocated),
        ("outside PyTorch", figures.outside_allocator),
    )
    parts = [f"{name} {size.num_bytes / GiB:.2f}" for name, size in sizes if size is not None and size.num_bytes > 0]
    return f"In use, GiB: {', '.join(parts)}" if parts else ""


def _changes(screen: Screen, changes: Iterable[str]) -> list[Text]:
    return [screen.text(f"  {change}", "cyan") for change in [*changes][:MOST_CHANGES]]


def _details(screen: Screen, failure: OutOfMemory) -> list[RenderableType]:
    """The message, and the calls that led to it."""
    calls = [
        (f"{frame.file}:{frame.line}, {frame.function}{f': {frame.code}' if frame.code else ''}", "")
        for frame in failure.frames
    ]
    shown: list[RenderableType] = [Text(""), screen.text(f"The message, line {failure.line:,}", "bold")]
    shown.append(screen.text(failure.text))
    return [*shown, Text(""), Text("Last calls", "bold"), hanging(screen, calls)] if calls else shown
