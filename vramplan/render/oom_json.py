"""Why a run ran out of memory as JSON, of the types in :mod:`vramplan.render.oom_types`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.render.json_output import verdict

if TYPE_CHECKING:
    from vramplan.planner.out_of_memory import Explanation
    from vramplan.render import oom_types as types
    from vramplan.training_log import Amount, Figures


def explanation(found: Explanation) -> types.OutOfMemoryData:
    """`vramplan oom --json`."""
    failure, tensor = found.failure, found.allocation
    return {
        "form": failure.form,
        "memory": failure.memory,
        "line": failure.line,
        "rank": failure.rank,
        "gpu": failure.gpu,
        "phase": failure.phase,
        "step": next((bar.done for bar in failure.progress), None),
        "went_on": failure.went_on,
        "framework": failure.framework,
        "figures": _figures(failure.figures),
        "causes": [{"name": cause.name, "text": cause.text, "changes": list(cause.changes)} for cause in found.causes],
        "allocation": None
        if tensor is None
        else {
            "label": tensor.label,
            "formula": tensor.formula,
            "bytes": tensor.num_bytes,
            "phase": tensor.phase,
            "live_bytes": tensor.live_bytes,
            "sequence_length": tensor.sequence_length,
        },
        "other_messages": found.others,
        "host_bytes": None if found.host is None else found.host.peak_bytes,
        "check": None if found.verdict is None else verdict(found.verdict),
    }


def _figures(figures: Figures) -> types.FiguresData:
    def size(amount: Amount | None) -> int | None:
        return None if amount is None else amount.num_bytes

    return {
        "requested": size(figures.requested),
        "capacity": size(figures.capacity),
        "free": size(figures.free),
        "allocated": size(figures.allocated),
        "unallocated": size(figures.unallocated),
        "reserved": size(figures.reserved),
        "outside_allocator": size(figures.outside_allocator),
    }
