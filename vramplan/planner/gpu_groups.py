"""The groups of GPUs of a run: whether each fits, and the verdict of the worst, or else the fullest one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from vramplan.analytic.rollout.vllm_share import ACTIVATIONS, least_bytes
from vramplan.dataclass import dataclass
from vramplan.errors import VramplanError
from vramplan.frameworks.gpu_groups import GpuGroup
from vramplan.inputs.load import load_named_model
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.vllm import requested_bytes
from vramplan.units import format_bytes

if TYPE_CHECKING:
    from vramplan.planner.verdict import Verdict


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """Whether a group of GPUs of a run fits."""

    name: str
    num_gpus: int
    need_bytes: int | None
    """Bytes that each of its GPUs needs at the fullest moment; None if that is not known."""
    fits: bool | None
    """None if that is not known."""
    text: str = ""
    """Why it does not fit, or is not known, or what it needs."""
    key: str = ""
    """The setting that says how many GPUs it has; empty for the GPUs that are planned first."""


def worst_of(first: Verdict, spec: ModelSpec, judge: Callable[..., Verdict]) -> Verdict:
    """The verdict of the first group that does not fit, else that of the fullest, with all groups beside it.

    vLLM's own GPUs are never that: it fills its share of them whatever it needs.

    Args:
        first: the verdict of the GPUs that are planned first.
        spec: their model.
        judge: gives the verdict of what was read of other GPUs, and of its model.
    """
    config = first.reading
    if not config.groups:
        return first
    groups = [GroupVerdict("the actor", first.estimate.job.num_gpus, first.need_bytes, first.fits)]
    worst = first
    for group in config.groups:
        if group.reading is None:
            groups.append(_engines(group, spec, first) if group.engines else _unknown(group, group.unknown))
            continue
        try:
            model = load_named_model(group.reading.model) if group.reading.model else spec
            verdict = judge(group.reading, model, look_further=False)
            if worst.fits and not verdict.fits and "micro_batch_size" in group.reading.names:
                verdict = judge(group.reading, model)  # with what would help
        except VramplanError as error:
            groups.append(_unknown(group, error.text))
            continue
        groups.append(GroupVerdict(group.name, group.num_gpus, verdict.need_bytes, verdict.fits, key=group.key))
        if worst.fits and (not verdict.fits or verdict.need_bytes > worst.need_bytes):
            group.reading.notes[:] = config.notes
            worst = verdict
    return replace(worst, groups=tuple(groups))


def _unknown(group: GpuGroup, why: str) -> GroupVerdict:
    return GroupVerdict(group.name, group.num_gpus, None, None, why, group.key)


def _engines(group: GpuGroup, spec: ModelSpec, first: Verdict) -> GroupVerdict:
    """Whether vLLM's share of a GPU of its own holds its weights, and the keys and values of its longest text.

    It takes its share whatever it needs (:func:`vramplan.memory.vllm.requested_bytes`).
    """
    assert group.engines is not None
    fields = {
        "generate_with": "vllm",
        "vllm_share": group.engines.share,
        "vllm_tensor_parallel": group.engines.tensor_parallel,
        "vllm_max_length": group.engines.max_length,
    }
    job, card = first.estimate.job.model_copy(update=fields), first.card
    try:
        weights, cache, longest = least_bytes(spec, job, card)
    except VramplanError as error:
        return _unknown(group, error.text)
    share = requested_bytes(job, card)
    left = share - weights - cache
    text = (
        f"{format_bytes(weights)} of weights, {format_bytes(cache)} of keys and values of {longest:,} tokens in"
        f" {format_bytes(share)}"
    )
    fits = None if 0 <= left < ACTIVATIONS else left > 0 and share <= card.usable_bytes
    if fits is None:
        text += ", which leave little for activations and CUDA graphs"
    return GroupVerdict(group.name, group.num_gpus, share, fits, text, group.key)
