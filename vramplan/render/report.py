"""`vramplan report`: an HTML page whose figures are looked up in a grid or interpolated in the batch size."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.batch_scaling import Segment
from vramplan.memory.calibration import margin_bytes
from vramplan.memory.estimate import Estimate
from vramplan.memory.timeline import BLOCK_BYTES
from vramplan.planner.report import Choice, Column, Grid, build
from vramplan.planner.search_result import Plan
from vramplan.render.figures import CATEGORIES, duration
from vramplan.render.plot import COLOURS
from vramplan.visible import visible

PAGE = Path(__file__).with_name("page")
TERMS = 14
"""Largest tensors that are named; the rest is in its category."""
FLAGS = {
    "sequence_length": ("tokens", "--seq-len"),
    "lora_rank": ("LoRA rank", "--lora-rank"),
    "checkpointing": ("checkpointing", "--checkpointing"),
    "image_size": ("image size", "--image-size"),
}
"""The name of each axis, and the option that sets it."""


def report(model: str | ModelSpec, gpu: str | Gpu, **choices: Any) -> bytes:
    """One page about a job, as HTML; keyword arguments are those of :func:`vramplan.planner.report.build`.

    Raises:
        VramplanError: if the job cannot run or is not supported.
    """
    return page(build(model, gpu, **choices))


def page(grid: Grid, words: Sequence[str] = ()) -> bytes:
    """The page; `words` are flags of the job that do not vary in it, for the command that gives the same figures."""
    parts = {
        name: (PAGE / name).read_text(encoding="utf-8")
        for name in ("page.html", "style.css", "interpolate.js", "charts.js")
    }
    title = f"{grid.start.model} on {grid.cards[0].title}"
    written = json.dumps(data(grid, words), separators=(",", ":"))
    inserts = {
        "@TITLE@": html.escape(visible(title)),
        "@STYLE@": parts["style.css"],
        "@LAW@": parts["interpolate.js"],
        "@DRAW@": parts["charts.js"],
        "@DATA@": re.sub("[<>&]", lambda mark: f"\\u{ord(mark[0]):04x}", written),
    }
    once = re.compile("|".join(inserts))  # what is inserted is not searched again
    return once.sub(lambda mark: inserts[mark[0]], parts["page.html"]).encode()


def data(grid: Grid, words: Sequence[str] = ()) -> dict[str, Any]:
    """The data of the page; sizes are bytes, but lines are in blocks of 512."""
    start, labels = grid.start, _Labels()
    return {
        "model": start.model,
        "words": list(words),
        "block": BLOCK_BYTES,
        "num_parameters": start.num_parameters,
        "num_trainable_parameters": start.num_trainable_parameters,
        "method": start.job.method,
        "num_gpus": start.job.num_gpus,
        "accumulation": start.gradient_accumulation_steps,
        "categories": [[key, name, COLOURS.get(key, "#c9c9c9")] for key, (name, _) in CATEGORIES.items()],
        "axes": [[field, *FLAGS[field], [_value(value) for value in values]] for field, values in grid.axes.items()],
        "cards": [
            {"name": card.name, "title": card.title, "usable": card.usable_bytes,
             "margin": margin_bytes(start.job, card), "outside": outside, "kind": kind}
            for card, outside, kind in zip(grid.cards, grid.outside, grid.kinds, strict=True)
        ],
        "start": {"micro": start.micro_batch_size, "values": [_value(value) for value in grid.begin.values.values()]},
        "choices": [_choice(choice, labels) for choice in grid.choices],
        "labels": labels.known,
        "global_batch": grid.search.global_batch_size,
        "recommended": grid.search.plans.index(grid.search.recommended) if grid.search.recommended else None,
        "plans": [
            [plan.micro_batch_size, plan.gradient_accumulation_steps, plan.estimate.device_total_bytes,
             plan.estimate.headroom_bytes, _time(plan)]
            for plan in grid.search.plans
        ],
        "rejected": [
            [pair.micro_batch_size, pair.gradient_accumulation_steps, pair.device_total_bytes, pair.reason]
            for pair in grid.search.rejected
        ],
        "levers": [
            [lever.change, lever.why, lever.cost, lever.saved_bytes, lever.device_total_bytes, lever.fits]
            for lever in grid.levers
        ],
        "assumptions": list(start.assumptions),
    }  # fmt: skip


def _time(plan: Plan) -> str:
    """The time of a plan's step, or a multiple of the fastest one's."""
    time = plan.estimate.step_time
    return f"{plan.relative_step_time:.2f} ×" if time is None else duration(time.seconds)


class _Labels:
    """Numbers of the labels of tensors, each label once."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self.numbers: dict[str, int] = {}

    def number(self, label: str) -> int:
        if label not in self.numbers:
            self.numbers[label] = len(self.known)
            self.known.append(label)
        return self.numbers[label]


def _value(value: Any) -> Any:
    """A value of an axis, as the command line takes it."""
    return f"{value[0]}x{value[1]}" if isinstance(value, tuple) else value


def _choice(choice: Choice, labels: _Labels) -> dict[str, Any]:
    return {
        "values": [_value(value) for value in choice.values.values()],
        "reason": choice.reason,
        "notes": list(next(iter(choice.columns[0].estimates.values())).notes) if choice.columns else [],
        "columns": [_column(column, labels) for column in choice.columns],
    }


def _column(column: Column, labels: _Labels) -> dict[str, Any]:
    pressed: dict[str, dict[int, list[Any]]] = {}
    for (card, micro), estimate in column.pressed.items():
        pressed.setdefault(card, {})[micro] = _cell(estimate, labels)
    return {
        "cells": {micro: _cell(estimate, labels) for micro, estimate in column.estimates.items()},
        "pressed": pressed,
        "segments": [_segment(segment) for segment in column.segments],
    }


def _cell(estimate: Estimate, labels: _Labels) -> list[Any]:
    """An estimate without the CUDA context: each GPU has its own."""
    totals = estimate.by_category()
    largest = sorted((term for term in estimate.terms if term.category != "context"), key=lambda term: -term.num_bytes)
    return [
        estimate.fits,
        estimate.fits_without_margin,
        estimate.peak_tensor_bytes,
        estimate.peak_allocated_bytes,
        estimate.peak_reserved_bytes,
        estimate.peak_phase,
        list(estimate.phases.values()),
        [0 if name == "context" else totals.get(name, 0) for name in CATEGORIES],
        [[labels.number(term.label), term.num_bytes] for term in largest[:TERMS]],
    ]


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "first": segment.first,
        "last": segment.last,
        "count": segment.num_events,
        "marks": [[mark.phase, mark.first_event] for mark in segment.marks],
        "events": [b - a for a, b in zip((0, *segment.events), segment.events, strict=False)],
        "lines": {name: _runs(lines) for name, lines in segment.lines.items()},
    }


def _runs(lines: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Equal neighbours together: how many, blocks at micro-batch 0, blocks for each sample."""
    return [[len(list(same)), a // BLOCK_BYTES, b // BLOCK_BYTES] for (a, b), same in groupby(lines)]
