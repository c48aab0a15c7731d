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
    sign = {True: "", None: " ?", False: " ✗"}[group.fits]
    is_share = group.fits and group.text  # vLLM's, which it fills whatever it needs
    return f"{gib(group.need_bytes)}{sign}{', its share' if is_share else ''}"


def of_group(verdict: Verdict) -> str:
    """Whose GPUs a verdict is of, where a run has several groups; empty otherwise."""
    return verdict.reading.task.partition(", ")[2] if verdict.groups else ""


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
    fitting = [group for group in verdict.groups if group.fits]
    if len(fitting) > 1:
        return f"fits on {len(fitting)} of {len(verdict.groups)} groups of GPUs"
    return f"fits on {owner(fitting[0])} {counted(fitting[0].num_gpus, 'GPU')} alone"


def failing(verdict: Verdict) -> str:
    """The group that does not fit, where this verdict is of one that does; empty otherwise."""
    names = [group.name for group in verdict.groups if group.fits is False]
    return f"not {names[0]} on its own GPUs" if names and verdict.case_fits else ""
