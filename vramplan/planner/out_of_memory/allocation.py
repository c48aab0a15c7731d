"""Which allocation of a simulated step a message is about."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from vramplan.dataclass import dataclass
from vramplan.memory.allocator import segment_bytes

if TYPE_CHECKING:
    from vramplan.memory.estimate import Estimate
    from vramplan.memory.timeline import Timeline
    from vramplan.training_log import Amount, OutOfMemory, Phase

PHASES: dict[Phase, str] = {
    "loading": "loaded",
    "moving the model": "loaded",
    "preparation": "loaded",
    "forward": "forward",
    "loss": "forward",
    "backward": "backward",
    "gradient clipping": "optimizer",
    "optimizer states": "optimizer",
    "optimizer step": "optimizer",
}
"""Phase of a log -> phase of a simulated run."""
ALIKE, FAR = 0.05, 0.2
"""Shares of the memory in use by which a simulated allocation may differ from the message: other versions of libraries,
masks, and padding make some difference; more only where a large request is exactly a tensor's."""
MOST_LENGTHS = 8
"""Lengths that are simulated to find that of a batch."""
_WORD = re.compile(r"[a-z]+_[a-z_]+|silu|gelu|logits|loss")
"""Names of modules and functions that tell one tensor from another: gate_proj."""
LEAST_BYTES = 20 << 20
"""Requests below say nothing about the length: many tensors share a segment of 20 MiB."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A tensor of the simulated step that the message fits."""

    label: str
    formula: str
    num_bytes: int
    phase: str
    """loaded, forward, backward or optimizer."""
    live_bytes: int
    """In use by tensors just before."""
    sequence_length: int
    """Tokens of the longest sample with which it fits."""
    is_sure: bool = True
    """Whether memory in use agrees as well, with samples of the longest length."""


def can_search(failure: OutOfMemory) -> bool:
    """Whether a message tells what a search needs, of a phase that is simulated event by event."""
    figures = failure.figures
    has_sizes = figures.requested is not None and figures.allocated is not None
    return has_sizes and (failure.phase is None or failure.phase in PHASES)


def find_allocation(
    failure: OutOfMemory, estimate: Estimate, at: Callable[[int], Estimate | None]
) -> Allocation | None:
    """The allocation of the simulated run that a message fits best; None if none fits.

    A message tells the size of the segment that was asked for and the memory in use, both rounded. If no tensor of a
    run with the longest samples fits, shorter ones are tried with which one would, then memory in use may differ more.

    Args:
        failure: what was read from the log.
        estimate: the run with samples of the longest length.
        at: the estimate with samples of another length; None if the job cannot have it.
    """
    figures = failure.figures
    if figures.requested is None or figures.allocated is None or estimate.timeline is None or not can_search(failure):
        return None
    found = _in_timeline(failure, estimate, figures.requested, figures.allocated, ALIKE)
    if found is not None or figures.requested.num_bytes < LEAST_BYTES:
        return found
    tried = (at(length) for length in _lengths(estimate, estimate.timeline, figures.requested))
    fitting = [
        _in_timeline(failure, other, figures.requested, figures.allocated, ALIKE)
        for other in tried
        if other is not None
    ]
    used = figures.allocated
    shorter = min(filter(None, fitting), key=lambda allocation: _distance(allocation, used), default=None)
    guess = shorter or _in_timeline(failure, estimate, figures.requested, used, FAR)
    return None if guess is None else replace(guess, is_sure=False)


def _in_timeline(
    failure: OutOfMemory, estimate: Estimate, requested: Amount, used: Amount, alike: float
) -> Allocation | None:
    """The allocation of one simulated run whose segment is the requested size, nearest in memory in use.

    Those that raise memory above all before come first: where an earlier one needed as much, that would have failed. Of
    several those whose module stands in the traceback's code come first.
    """
    timeline = estimate.timeline
    assert timeline is not None
    levels = timeline.live_bytes()
    phase = PHASES.get(failure.phase) if failure.phase is not None else None
    highest, rising, falling = 0, list[Allocation](), list[Allocation]()
    for mark, end in timeline.phases():
        for index in range(mark.first_event, end):
            event, level = timeline.events[index], levels[index]
            if event >= 0 and phase in (None, mark.phase):
                storage = timeline.storage(event)
                if _fits(requested, storage.rounded_bytes, storage.num_bytes):
                    before, length = level - storage.rounded_bytes, estimate.job.sequence_length
                    found = Allocation(storage.label, storage.formula, storage.num_bytes, mark.phase, before, length)
                    (rising if level > highest else falling).append(found)
            highest = max(highest, level)
    code = {word for frame in failure.frames for word in _WORD.findall(f"{frame.code} {frame.function}")}
    for fitting in (rising, falling):
        named = [found for found in fitting if code & {*_WORD.findall(found.label)}]
        for choices, limit in ((named, FAR), (fitting, alike)):
            near = [found for found in choices if _distance(found, used) <= limit * used.num_bytes]
            if near:
                best = min(near, key=lambda found: (-len(code & {*_WORD.findall(found.label)}), _distance(found, used)))
                return replace(best, is_sure=_distance(best, used) <= ALIKE * used.num_bytes)
    return None


def _fits(requested: Amount, rounded_bytes: int, num_bytes: int) -> bool:
    """Whether a message's size is that of a tensor: of its segment, or with another allocator of itself."""
    return requested.allows(segment_bytes(rounded_bytes)) or requested.allows(num_bytes)


def _distance(allocation: Allocation, used: Amount) -> int:
    return abs(allocation.live_bytes - used.num_bytes)


def _lengths(estimate: Estimate, timeline: Timeline, requested: Amount) -> Iterable[int]:
    """Lengths with which a tensor that grows with the length would have the requested size, the longest first.

    A segment is rounded up to 2 MiB, so the length is known to within that share.
    """
    job = estimate.job
    lengths = set()
    for kind in timeline.kinds:
        if kind.category in ("logits", "activation", "temporary") and kind.num_bytes >= LEAST_BYTES:
            length = round(job.sequence_length * requested.num_bytes / kind.num_bytes)
            if 1 <= length < job.sequence_length:
                lengths.add(length)
    return sorted(lengths, reverse=True)[:MOST_LENGTHS]
