"""What makes a configuration fit, in the words of its own framework, the same on every surface."""

from __future__ import annotations

from vramplan.planner.search_result import FREE, LeverEffect
from vramplan.planner.verdict import Verdict
from vramplan.render.check_words import shortest_tried
from vramplan.render.figures import gib
from vramplan.units import counted


def ways_out(verdict: Verdict) -> list[tuple[str, list[str]]]:
    """The changes at the same global batch: what they do, and lines in the framework's own words."""
    config, ways = verdict.reading, list[tuple[str, list[str]]]()
    if verdict.eval_batch_size:
        settings = config.say({"eval_batch_size": verdict.eval_batch_size})
        ways.append((f"Evaluation of {counted(verdict.eval_batch_size, 'sample')} at once fits", settings))
    if verdict.plan is not None:
        plan = verdict.plan
        batch = {
            "micro_batch_size": plan.micro_batch_size,
            "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        }
        size = gib(verdict.plan_bytes)
        settings = config.say(batch)
        settings = ["  ".join(settings)] if verdict.advice else settings  # there is a second way
        job = verdict.estimate.job
        several = len({case.sequence_length for case in verdict.cases}) > 1
        at_length = f" with {job.sequence_length:,} tokens" if several else ""
        negatives = [change for change in verdict.advice if "mini_batch_size" in change.update]
        for change in negatives:
            title = f"Same micro-batch and negatives, fits at {gib(change.device_total_bytes)} GiB{at_length}"
            ways.append((f"{title}, costs {change.cost}", [*change.settings]))
        ways.append((f"Same global batch, fits at {size} GiB{at_length}", settings))
        ways += [(f"But {text}", []) for text in verdict.plan_warnings]
        for change in [change for change in verdict.advice if change.cost == FREE][:1]:
            need, words = gib(change.device_total_bytes), "  ".join(change.settings)
            ways.append((f"Or free, {need} GiB at micro-batch {change.micro_batch_size}: {words}", []))
        return ways
    if verdict.search is None:
        return ways
    if verdict.search.recommended is not None:
        why = (
            "Training fits; an evaluation does not, even of 1 sample"
            if verdict.eval_batch_size == 0
            else "What is missing PyTorch caches, and gives back on a fuller GPU; it fits without --min-headroom"
        )
        return [*ways, (why, [])]
    first = verdict.nearest_change
    if first is None:
        known = "no change that was tried is enough" if verdict.advice else "nothing else helps"
        return [*ways, (f"No micro-batch fits at this global batch; {known}", [])]
    cost = "free" if first.cost == FREE else f"costs {first.cost}"
    at_length = f" with {verdict.estimate.job.sequence_length:,} tokens" if shortest_tried(verdict) else ""
    title = f"No micro-batch fits{at_length}. Cheapest change, {gib(first.device_total_bytes)} GiB, {cost}"
    return [*ways, (title, [*first.settings, *first.batch]), *[(f"But {text}", []) for text in verdict.plan_warnings]]


def shorter_samples(verdict: Verdict) -> list[str]:
    """Samples that fit, if the limit that all are counted at does not."""
    if verdict.shorter_length is None:
        return []
    job, shorter = verdict.estimate.job, verdict.shorter_length
    if job.generates_completions and job.prompt_length is not None:
        shorter -= job.sequence_length - job.prompt_length
        return [f"Prompts of {job.prompt_length:,} tokens, the limit, are counted; of {shorter:,} fit (--dataset)"]
    return [f"Samples of {job.sequence_length:,} tokens, the limit, are counted; of {shorter:,} fit (--dataset)"]


def other_ways(verdict: Verdict) -> list[LeverEffect]:
    """Changes beside the cheapest, if no micro-batch fits."""
    if verdict.search is None or verdict.search.recommended is not None or verdict.plan is not None:
        return []
    return [counsel for counsel in verdict.advice if counsel is not verdict.nearest_change]


__all__ = ["other_ways", "shorter_samples", "ways_out"]
