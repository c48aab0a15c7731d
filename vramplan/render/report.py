"""`vramplan report`: one page of its own, whose figures are looked up in a grid or follow from its law."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.batch_scaling import Segment
from vramplan.memory.estimate import Estimate
from vramplan.memory.timeline import BLOCK_BYTES
from vramplan.planner.report import Choice, Column, Grid, build
from vramplan.planner.suggest import WITHOUT_MARGIN, Rejected
from vramplan.render.figures import CATEGORIES
from vramplan.render.plot import COLOURS

PAGE = Path(__file__).with_name("page")
TERMS = 14
"""Largest tensors that are named; the rest stands in its category."""
FLAGS = {
    "sequence_length": ("tokens", "--seq-len"),
    "lora_rank": ("LoRA rank", "--lora-rank"),
    "checkpointing": ("checkpointing", "--checkpointing"),
    "image_size": ("image size", "--image-size"),
}
"""How each axis is called, and the flag that sets it."""


def report(model: str | ModelSpec, gpu: str | Gpu, **choices: Any) -> bytes:
    """One page about a job, as HTML; keyword arguments are those of :func:`vramplan.planner.report.build`.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    return page(build(model, gpu, **choices))


def page(grid: Grid, words: Sequence[str] = ()) -> bytes:
    """The page; `words` are flags of the job that do not vary in it, for the command that gives the same figures."""
    parts = {
        name: (PAGE / name).read_text(encoding="utf-8")
        for name in ("page.html", "style.css", "interpolate.js", "charts.js")
    }
    title = f"{grid.start.model} on {grid.cards[0].title}"
    written = json.dumps(data(grid, words), separators=(",", ":")).replace("</", "<\\/")
    text = parts["page.html"].replace("@TITLE@", html.escape(title)).replace("@STYLE@", parts["style.css"])
    text = text.replace("@LAW@", parts["interpolate.js"]).replace("@DRAW@", parts["charts.js"])
    return text.replace("@DATA@", written).encode()


def data(grid: Grid, words: Sequence[str] = ()) -> dict[str, Any]:
    """Everything that the page shows; sizes are bytes, but lines are blocks of 512."""
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
        "axes": [[field, *FLAGS[field], [_value(one) for one in values]] for field, values in grid.axes.items()],
        "cards": [
            {"name": card.name, "title": card.title, "usable": card.usable_bytes, "margin": card.margin_bytes,
             "outside": outside, "kind": kind}
            for card, outside, kind in zip(grid.cards, grid.outside, grid.kinds, strict=True)
        ],
        "start": {"micro": start.micro_batch_size, "values": [_value(one) for one in grid.begin.values.values()]},
        "choices": [_choice(one, labels) for one in grid.choices],
        "labels": labels.known,
        "global_batch": grid.search.global_batch_size,
        "recommended": grid.search.plans.index(grid.search.recommended) if grid.search.recommended else None,
        "plans": [
            [one.micro_batch_size, one.gradient_accumulation_steps, one.estimate.device_total_bytes,
             one.estimate.headroom_bytes, f"{one.relative_step_time:.2f}"]
            for one in grid.search.plans
        ],
        "rejected": [
            [one.micro_batch_size, one.gradient_accumulation_steps, one.device_total_bytes, _why(one)]
            for one in grid.search.rejected
        ],
        "levers": [
            [one.change, one.why, one.cost, one.saved_bytes, one.device_total_bytes, one.fits] for one in grid.levers
        ],
        "assumptions": list(start.assumptions),
    }  # fmt: skip


def _why(one: Rejected) -> str:
    """Why a pair is none, and whether its figure is a bound."""
    bound = one.device_total_bytes is not None and one.reason != WITHOUT_MARGIN
    return f"{one.reason}; needs at least that" if bound else one.reason


class _Labels:
    """Labels of tensors, each kept once."""

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


def _choice(one: Choice, labels: _Labels) -> dict[str, Any]:
    return {
        "values": [_value(value) for value in one.values.values()],
        "reason": one.reason,
        "notes": list(next(iter(one.columns[0].estimates.values())).notes) if one.columns else [],
        "columns": [_column(column, labels) for column in one.columns],
    }


def _column(one: Column, labels: _Labels) -> dict[str, Any]:
    pressed: dict[str, dict[int, list[Any]]] = {}
    for (card, micro), estimate in one.pressed.items():
        pressed.setdefault(card, {})[micro] = _cell(estimate, labels)
    return {
        "cells": {micro: _cell(estimate, labels) for micro, estimate in one.estimates.items()},
        "pressed": pressed,
        "segments": [_segment(segment) for segment in one.segments],
    }


def _cell(one: Estimate, labels: _Labels) -> list[Any]:
    """The context is left out: each card has its own."""
    totals = one.by_category()
    largest = sorted((term for term in one.terms if term.category != "context"), key=lambda term: -term.num_bytes)
    return [
        one.fits,
        one.fits_without_margin,
        one.peak_tensor_bytes,
        one.peak_allocated_bytes,
        one.peak_reserved_bytes,
        one.peak_phase,
        list(one.phases.values()),
        [0 if name == "context" else totals.get(name, 0) for name in CATEGORIES],
        [[labels.number(term.label), term.num_bytes] for term in largest[:TERMS]],
    ]


def _segment(one: Segment) -> dict[str, Any]:
    return {
        "first": one.first,
        "last": one.last,
        "count": one.num_events,
        "marks": [[mark.phase, mark.first_event] for mark in one.marks],
        "events": [b - a for a, b in zip((0, *one.events), one.events, strict=False)],
        "lines": {name: _runs(lines) for name, lines in one.lines.items()},
    }


def _runs(lines: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Equal neighbours together: how many, blocks at micro-batch 0, blocks for each sample."""
    return [[len(list(same)), a // BLOCK_BYTES, b // BLOCK_BYTES] for (a, b), same in groupby(lines)]
