"""`vramplan estimate` for a terminal: the verdict, where the memory goes, and every tensor at the peak on request."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from vramplan.inputs.gpu import Gpu
from vramplan.memory.estimate import Estimate, Term
from vramplan.memory.generation import Generation
from vramplan.memory.host import HostMemory
from vramplan.render.figures import CATEGORIES, sentence, time_of_step
from vramplan.render.terminal import (
    Answer,
    Box,
    Screen,
    all_assumptions,
    assumption_line,
    each_gpu,
    hanging,
    held_by_others,
    notes,
    plan_line,
    simple_table,
    where_it_goes,
)
from vramplan.render.verdict import doubts, outcome, reason_of, subject
from vramplan.units import MiB


def answer(
    estimate: Estimate,
    gpu: Gpu,
    verbose: bool = False,
    explain: bool = False,
    host: HostMemory | None = None,
    generation: Generation | None = None,
) -> Answer:
    """Everything that `vramplan estimate` prints."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        job = estimate.job
        box = Box(
            subject(estimate.model, gpu.title, job.num_gpus),
            outcome(estimate),
            estimate.device_total_bytes,
            estimate.capacity_bytes,
            estimate.margin_bytes,
            reason=reason_of(estimate),
        )
        plan = plan_line(screen, job, job.micro_batch_size, job.gradient_accumulation_steps)
        tight = [screen.text(doubt, "yellow") for doubt in doubts(estimate)]
        time = [screen.text(sentence(text))] if (text := time_of_step(estimate)) else []
        shown: list[RenderableType] = [
            box.panel(screen, [plan, *time, *tight]),
            assumption_line(screen, estimate, verbose=verbose or explain),
            *notes(screen, (*estimate.notes, *held_by_others(estimate, gpu.held_bytes))),
            Text(""),
            where_it_goes(estimate)(screen),
            *each_gpu(screen, estimate),
        ]
        if generation is not None:
            from vramplan.render.generation import generation_details, generation_lines

            shown += generation_lines(screen, generation)
            shown += generation_details(screen, generation) if verbose or explain else []
        if host is not None:
            from vramplan.render.host import host_details, host_line

            shown += host_details(screen, host) if verbose or explain else host_line(screen, host, job)
        if explain:
            shown += [Text(""), *_terms(screen, estimate.terms)]
        return [*shown, *(all_assumptions(screen, estimate) if verbose or explain else [])]

    return Answer(lay_out)


def _terms(screen: Screen, terms: Iterable[Term]) -> list[RenderableType]:
    """Every tensor at the peak, by category; terms of no bytes are left out."""
    title = Text.assemble(("Every tensor at the peak", "bold"), (", MiB", "dim"))
    rows: list[RenderableType] = [title]
    by_category = {
        category: [term for term in terms if term.category == category and term.num_bytes] for category in CATEGORIES
    }
    table = simple_table(("MiB", "right"), ("n", "right"), "what", "each")
    for category, tensors in by_category.items():
        if not tensors:
            continue
        name, total = CATEGORIES[category][0], sum(term.num_bytes for term in tensors)
        if screen.narrow:
            lines = [
                f"{term.num_bytes / MiB:,.1f}  {term.label}{f', {term.count} times' if term.count > 1 else ''}"
                + (f", {term.formula}" if term.formula else "")
                for term in tensors
            ]
            rows += [
                screen.text(f"{total / MiB:,.1f}  {name}", "bold"),
                hanging(screen, [(line, "") for line in lines]),
            ]
            continue
        table.add_row(f"{total / MiB:,.1f}", "", Text(name, "bold"), "")
        for term in tensors:
            count = str(term.count) if term.count > 1 else ""
            size = f"{term.num_bytes / MiB:,.1f}"
            table.add_row(size, count, screen.text(term.label), screen.text(term.formula, "dim"))
    return rows if screen.narrow else [*rows, table]


__all__ = ["answer"]
