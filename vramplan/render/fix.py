"""What `vramplan check --fix` changed, for standard error: the changed text goes to standard output."""

from __future__ import annotations

from vramplan.inputs.batch_rules import samples_of_step
from vramplan.planner.fix import Fix
from vramplan.render.figures import free_gib, gib
from vramplan.render.verdict import doubts
from vramplan.units import counted


def summary(where: str, fix: Fix) -> str:
    """One line if nothing was changed, else one more for each setting."""
    after, job = fix.after, fix.after.estimate.job
    capacity = free_gib(after.estimate.capacity_bytes)
    taken = "" if fix.taken_length is None else f" at {fix.taken_length:,} tokens (--seq-len says how many)"
    if fix.before.fits and not fix.changes:
        return f"{where}: fits as it is, {gib(after.need_bytes)} of {capacity} GiB{taken}"
    if not after.fits:
        return (
            f"{where}: no change that was tried makes it fit {after.card.title} at a global batch of"
            f" {samples_of_step(job)}: the least of all that was tried is {gib(fix.least_need_bytes)} of {capacity}"
            f" GiB{taken}"
        )
    head = (
        f"{where}: fits with {counted(len(fix.changes), 'change')}, {gib(after.need_bytes)} of {capacity} GiB,"
        f" global batch still {samples_of_step(job)}{taken}"
    )
    lines = [
        f"  {change.key}: {change.after}, was {'not set' if change.before is None else change.before} ({change.cost})"
        for change in fix.changes
    ]
    return "\n".join([head, *lines, *(f"  {doubt}" for doubt in (*doubts(after.estimate), *after.doubts))])
