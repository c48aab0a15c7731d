"""The verdict of `vramplan check` in words, the same on every surface."""

from __future__ import annotations

from vramplan.planner.undecided import Case
from vramplan.planner.verdict import Verdict
from vramplan.render import gpu_groups
from vramplan.render.figures import free_gib, gib
from vramplan.render.verdict import FRAGMENTED, Outcome, doubts
from vramplan.units import counted


def outcome_of_check(verdict: Verdict) -> Outcome:
    """Fits, depends, only without margin, or not."""
    if verdict.fits:
        return "fits"
    if verdict.depends:
        return "depends"
    without_margin = not verdict.estimate.fits and verdict.estimate.fits_without_margin
    return "without margin" if without_margin and verdict.free_bytes >= 0 else "does not fit"


def words_of_check(verdict: Verdict) -> str:
    """The verdict if it depends on what the configuration does not say, or never fits; empty for a plain one."""
    if shortest := shortest_tried(verdict):
        return f"DOES NOT FIT EVEN AT {shortest.sequence_length:,} TOKENS"
    if not verdict.depends:
        return ""
    if words := gpu_groups.undecided(verdict):
        return words.upper().replace("GPUS", "GPUs")
    job = verdict.estimate.job
    counts = {case.num_gpus for case in verdict.cases}
    lengths = [case.sequence_length for case in verdict.cases if case.num_gpus == job.num_gpus]
    words = f" up to {job.sequence_length:,} tokens" if len(lengths) > 1 else ""
    if len(counts) > 1:
        fitting = {case.num_gpus for case in verdict.cases if case.fits}
        on = counted(job.num_gpus, "GPU")
        words += f" on {on}" if words or fitting == {1} else f" from {on} on"
    return f"FITS{words.upper().replace('GPUS', 'GPUs')}"


def shortest_tried(verdict: Verdict) -> Case | None:
    """The shortest of several lengths, if it needs more than there is beside the margin; None if one length fits."""
    cases = [case for case in verdict.cases if case.num_gpus == verdict.estimate.job.num_gpus]
    shortest = min(cases, key=lambda case: case.sequence_length, default=None)
    if len(cases) < 2 or shortest is None or any(case.fits for case in verdict.cases):
        return None
    lengths = {case.sequence_length for case in cases}
    too_large = shortest.need_bytes > verdict.estimate.capacity_bytes - verdict.spare_bytes
    return shortest if len(lengths) > 1 and too_large else None


def doubts_of_length(verdict: Verdict) -> list[str]:
    """What could turn a verdict that fits, with the length that it is of where several were tried."""
    several = len({case.sequence_length for case in verdict.cases}) > 1
    texts = doubts(verdict.estimate, is_longest=several)
    if not several:
        return texts
    return [f"With {verdict.estimate.job.sequence_length:,} tokens: {text[:1].lower()}{text[1:]}" for text in texts]


def need_of_check(verdict: Verdict) -> int:
    """Bytes that the headline is about: of the shortest length if not even that fits."""
    shortest = shortest_tried(verdict)
    return verdict.need_bytes if shortest is None else shortest.need_bytes


def reason(verdict: Verdict) -> str:
    """Why it does not fit, if it needs no more than the GPU has."""
    estimate = verdict.estimate
    if words := gpu_groups.failing(verdict):
        return words
    if shortest := shortest_tried(verdict):
        free, margin = estimate.capacity_bytes - shortest.need_bytes, gib(verdict.spare_bytes)
        return f"headroom {free_gib(free)}, less than the margin {margin}" if free >= 0 else ""
    if verdict.case_fits or verdict.free_bytes < 0 or outcome_of_check(verdict) == "without margin":
        return ""
    if not estimate.fits:
        return FRAGMENTED
    evaluates = (verdict.evaluation_bytes or 0) > estimate.device_total_bytes
    return f"{'evaluation' if evaluates else 'the free space asked for'} has too little room"


__all__ = ["doubts_of_length", "need_of_check", "outcome_of_check", "reason", "shortest_tried", "words_of_check"]
