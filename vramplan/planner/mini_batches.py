"""A smaller part of a contrastive batch at a time, where the loss caches gradients: the negatives stay."""

from __future__ import annotations

from vramplan.errors import VramplanError
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.inputs.embedding import CACHED
from vramplan.memory.estimate import Estimate
from vramplan.planner.estimate_cache import EstimateCache
from vramplan.planner.search_result import LeverEffect


def smaller_mini_batch(
    config: ParsedConfig, estimates: EstimateCache, training: Estimate, spare_bytes: int
) -> LeverEffect | None:
    """The largest `mini_batch_size`, by halving, that makes a training fit with its own micro-batch; None if none does.

    (sentence-transformers 6.2, losses/cached_multiple_negatives_ranking.py: the result is the same but for rounding.)
    """
    job, micro, steps = training.job, training.micro_batch_size, training.gradient_accumulation_steps
    if job.task != "embedding" or job.embedding_loss != CACHED:
        return None
    size = min(job.mini_batch_size, micro)
    while size > 1:
        size //= 2
        update = {"mini_batch_size": size}
        settings = tuple(config.say(update))
        changed = estimates.changed(update)
        try:
            fits = bool(settings) and changed.fits(micro, steps)
        except VramplanError:
            return None
        if fits and training.capacity_bytes - (need := changed(micro, steps).device_total_bytes) >= spare_bytes:
            saved = max(0, training.device_total_bytes - need)
            change, why = f"--mini-batch-size {size}", "fewer texts run through the model at a time"
            return LeverEffect(change, why, "time", saved, True, micro, need, update, settings)
    return None
