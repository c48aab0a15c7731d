"""What `vramplan check --fix` changed, for standard error: the text itself goes to standard output."""

from __future__ import annotations

from vramplan.planner.fix import Fix
from vramplan.render.figures import free_gib, gib


def said(where: str, one: Fix) -> str:
    """One line where nothing was changed, else one more for each setting."""
    after, job = one.after, one.after.estimate.job
    room = free_gib(after.estimate.capacity_bytes)
    if one.before.fits and not one.changes:
        return f"{where}: fits as it is, {gib(after.need_bytes)} of {room} GiB"
    if not after.fits:
        return (
            f"{where}: no change of its settings makes it fit {after.card.title} at a global batch of"
            f" {job.global_batch_size}: the least of all that was tried is {gib(one.lower_bound_bytes)} of {room} GiB"
        )
    count = f"{len(one.changes)} change{'s' if len(one.changes) > 1 else ''}"
    lines = [
        f"  {change.key}: {change.after}, was {'not set' if change.before is None else change.before} ({change.cost})"
        for change in one.changes
    ]
    head = (
        f"{where}: fits with {count}, {gib(after.need_bytes)} of {room} GiB, global batch still {job.global_batch_size}"
    )
    return "\n".join([head, *lines])
