"""The data set that a configuration trains on: its lengths, and what they make of the batches."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from vramplan.planner.verdict import Verdict
from vramplan.render.terminal import (
    Screen,
)
from vramplan.units import counted

QUANTILES = {"P50": 0.5, "P95": 0.95, "P99": 0.99}


def _data_set(screen: Screen, verdict: Verdict) -> list[RenderableType]:
    rows = data_set(verdict)
    return [Text(""), Text("Data set", "bold"), *(screen.text(row) for row in rows)] if rows else []


def data_set(verdict: Verdict) -> list[str]:
    """How long the samples are, and what that makes of the batches; nothing without a data set."""
    data = verdict.data
    if data is None:
        return []
    lengths = {name: data.distribution.quantile(share) for name, share in QUANTILES.items()}
    lengths |= {"longest": data.distribution.longest, "limit": data.limit}
    rows = [
        f"{data.lengths.path.name}: {data.distribution.samples:,} samples, their tokens {data.lengths.source}",
        "Tokens: "
        + ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        + (f"; {data.completion:,} of each are its completion's" if data.completion else ""),
    ]
    longer = data.distribution.count_longer(data.limit)
    if longer:
        fate = "dropped" if data.drops_longer else "cut"
        rows.append(f"{percent(longer / data.distribution.samples)} are longer than the limit ({longer:,}): {fate}")
    padding = {"samples": "", "padded": ", every row padded to the limit", "packed": ", rows packed full"}[data.rows]
    rows.append(f"Longest row of a batch: {data.worst_length:,} tokens{padding}")
    trained = "all" if data.trained_samples == data.distribution.samples else f"{data.trained_samples:,}"
    rows.append(f"An epoch over {trained} of them: {counted(data.steps_per_epoch, 'step')}")
    if data.padding_share:
        rows.append(
            f"A batch of {data.micro_batch_size} is padded to {data.padded_to:,.0f} tokens on average,"
            f" {percent(data.padding_share)} of which is padding"
        )
    if data.near_share is not None:
        rows.append(f"{percent(data.near_share)} of all batches need 95% or more of what the longest needs")
    if data.fitting_length:
        over = data.distribution.count_longer(data.fitting_length) / data.distribution.samples
        words = "  ".join(verdict.reading.say({"sequence_length": data.fitting_length}))
        rows.append(
            f"Up to {data.fitting_length:,} tokens would fit ({words}): {percent(over)} of the samples are longer"
        )
    elif data.fitting_length == 0:
        rows.append("No length would fit at this micro-batch")
    return rows


def percent(share: float) -> str:
    """A share that is never rounded to none or all.

    >>> percent(0.00003), percent(0.5)
    ('under 0.1%', '50.0%')
    """
    if 0 < share < 0.001:
        return "under 0.1%"
    return "over 99.9%" if 0.999 < share < 1 else f"{share:.1%}"


__all__ = ["data_set", "percent"]
