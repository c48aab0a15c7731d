"""The groups of GPUs of a run in words and figures, the same on every surface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.render.figures import gib
from vramplan.units import counted

if TYPE_CHECKING:
    from vramplan.planner.gpu_groups import GroupVerdict
    from vramplan.planner.verdict import Verdict


def needs(verdict: Verdict) -> list[tuple[str, bool | None]]:
    """(The GiB that each GPU of a group needs, whether it fits), of each group of a run that has several."""
    return [
        (f"{owner(group)} {counted(group.num_gpus, 'GPU')}: {_size(group)}", group.fits) for group in verdict.groups
    ]


def owner(group: GroupVerdict) -> str:
    """Whose GPUs they are."""
    return f"{group.name}'s"


def _size(group: GroupVerdict) -> str:
    if group.need_bytes is None:
        return "not known"
    return f"{gib(group.need_bytes)}{ {True: '', None: ' ?', False: ' ✗'}[group.fits] }"


def remarks(verdict: Verdict) -> list[str]:
    """What is not known of a group, and what of vLLM does not fit."""
    return [
        f"{'Not known: ' if group.fits is None else ''}{group.key}: {group.name}: {group.text}"
        for group in verdict.groups
        if group.text and not group.fits
    ]


def undecided(verdict: Verdict) -> str:
    """The verdict if some groups fit and it is not known of others; empty otherwise."""
    if not verdict.depends or not verdict.groups:
        return ""
    return f"fits on {owner(verdict.groups[0])} {counted(verdict.groups[0].num_gpus, 'GPU')} alone"


def failing(verdict: Verdict) -> str:
    """The group that does not fit, where this verdict is of one that does; empty otherwise."""
    names = [group.name for group in verdict.groups if group.fits is False]
    return f"not {names[0]} on its own GPUs" if names and verdict.case_fits else ""
