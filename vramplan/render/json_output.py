"""Results as JSON: the contract of `--json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import ProcessedImage, Size
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.estimate import Estimate
from vramplan.planner.check import Verdict
from vramplan.planner.dataset_limits import DatasetLimits
from vramplan.planner.fix import Fix
from vramplan.planner.images import ImageSizeRow, Solved
from vramplan.planner.suggest import Plan, Run, Search


def dumps(value: Any) -> str:
    """JSON text, indented."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def estimate(one: Estimate) -> dict[str, Any]:
    """`vramplan estimate --json`."""
    return {
        "model": one.model,
        "by": one.by,
        "card": one.card,
        "micro_batch_size": one.micro_batch_size,
        "gradient_accumulation_steps": one.gradient_accumulation_steps,
        "peak_tensor_bytes": one.peak_tensor_bytes,
        "peak_allocated_bytes": one.peak_allocated_bytes,
        "peak_reserved_bytes": one.peak_reserved_bytes,
        "device_total_bytes": one.device_total_bytes,
        "capacity_bytes": one.capacity_bytes,
        "headroom_bytes": one.headroom_bytes,
        "margin_bytes": one.margin_bytes,
        "fits": one.fits,
        "fits_without_margin": one.fits_without_margin,
        "peak_phase": one.peak_phase,
        "phases": one.phases,
        "terms": [
            {
                "category": term.category,
                "label": term.label,
                "bytes": term.num_bytes,
                "count": term.count,
                "formula": term.formula,
                "source": term.source,
            }
            for term in one.terms
        ],
        "cards": [asdict(each) for each in one.cards],
        "num_parameters": one.num_parameters,
        "num_trainable_parameters": one.num_trainable_parameters,
        "num_vision_parameters": one.num_vision_parameters,
        "image_tokens_per_sample": one.image_tokens_per_sample,
        "flops_per_micro_step": one.flops_per_micro_step,
        "job": one.job.model_dump(mode="json"),
        "assumptions": list(one.assumptions),
        "notes": list(one.notes),
    }


def plan(one: Plan) -> dict[str, Any]:
    """One entry of `plans`."""
    return {
        "micro_batch_size": one.micro_batch_size,
        "gradient_accumulation_steps": one.gradient_accumulation_steps,
        "data_parallel": one.data_parallel,
        "global_batch_size": one.global_batch_size,
        "peak_allocated_bytes": one.estimate.peak_allocated_bytes,
        "peak_reserved_bytes": one.estimate.peak_reserved_bytes,
        "device_total_bytes": one.estimate.device_total_bytes,
        "headroom_bytes": one.estimate.headroom_bytes,
        "fits": one.estimate.fits,
        "relative_step_time": round(one.relative_step_time, 4),
        "micro_steps": one.micro_steps,
        "optimizer_updates": one.optimizer_updates,
        "trainer_updates": one.trainer_updates,
        "relative_run_time": None if one.relative_run_time is None else round(one.relative_run_time, 4),
    }


def search(one: Search, run: Run) -> dict[str, Any]:
    """`vramplan suggest --json`."""
    return {
        "model": one.model,
        "card": one.card.name,
        "num_gpus": one.job.num_gpus,
        "global_batch_size": one.global_batch_size,
        "plans": [plan(each) for each in one.plans],
        "recommended": plan(one.recommended) if one.recommended else None,
        "max_micro_batch_size": one.max_micro_batch_size,
        "rejected": [
            {
                "micro_batch_size": each.micro_batch_size,
                "gradient_accumulation_steps": each.gradient_accumulation_steps,
                "reason": each.reason,
                "device_total_bytes": each.device_total_bytes,
            }
            for each in one.rejected
        ],
        "advice": [
            {
                "change": each.change,
                "why": each.why,
                "cost": each.cost,
                "saved_bytes": each.saved_bytes,
                "fits": each.fits,
                "micro_batch_size": each.micro_batch_size,
                "device_total_bytes": each.device_total_bytes,
            }
            for each in one.advice
        ],
        "warnings": list(one.warnings),
        "learning_rate": one.learning_rate,
        "samples": run.samples,
        "epochs": run.epochs if run.samples is not None else None,
        "capacity_bytes": one.smallest.capacity_bytes,
        "estimate": estimate(one.recommended.estimate if one.recommended else one.smallest),
        "assumptions": list(one.smallest.assumptions),
        "notes": list(one.smallest.notes),
    }


def _counts(picture: ProcessedImage) -> dict[str, Any]:
    return {
        "becomes": picture.description,
        "tokens": picture.tokens,
        "extra_tokens": picture.extra_tokens,
        "tiles": picture.tiles,
    }


def counts(rows: Sequence[tuple[Size, ProcessedImage]]) -> list[dict[str, Any]]:
    """`vramplan images --json` for a model whose memory nothing describes."""
    return [{**size._asdict(), **_counts(picture)} for size, picture in rows]


def images(rows: Sequence[ImageSizeRow]) -> list[dict[str, Any]]:
    """`vramplan images --json`."""
    return [
        {
            **row.size._asdict(),
            **_counts(row.image),
            "patches": row.image.patches,
            "sequence_length": row.sequence_length,
            "max_micro_batch_size": row.max_micro_batch_size,
            "estimate": estimate(row.estimate),
        }
        for row in rows
    ]


def solved(one: Solved) -> dict[str, Any]:
    """What `suggest --solve` adds."""
    return {
        "quantity": one.quantity,
        "value": one.value if isinstance(one.value, int) else list(one.value),
        "bounded_by_memory": one.bounded,
        "estimate": estimate(one.estimate),
    }


def model(spec: ModelSpec) -> dict[str, Any]:
    """One entry of `vramplan models --json`."""
    return spec.model_dump(mode="json")


def card(one: Gpu) -> dict[str, Any]:
    """One entry of `vramplan gpus --json`."""
    return one.model_dump(mode="json")


def verdict(one: Verdict) -> dict[str, Any]:
    """`vramplan check --json`."""
    plan = one.plan
    return {
        "fits": one.fits,
        "need_bytes": one.need_bytes,
        "free_bytes": one.free_bytes,
        "evaluation_bytes": one.evaluation_bytes,
        "framework": one.reading.framework,
        "framework_version": one.reading.version,
        "job": one.estimate.job.model_dump(mode="json"),
        "notes": [note._asdict() for note in one.reading.notes],
        "plan": plan
        and {
            "micro_batch_size": plan.micro_batch_size,
            "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        },
        "eval_batch_size": one.eval_batch_size,
        "advice": [
            {
                "change": counsel.change,
                "settings": [*counsel.settings, *counsel.batch],
                "fits": counsel.fits,
                "device_total_bytes": counsel.device_total_bytes,
                "cost": counsel.cost,
            }
            for counsel in one.advice
        ],
        "dataset": one.data and data_set(one.data),
        "estimate": estimate(one.estimate),
    }


def data_set(one: DatasetLimits) -> dict[str, Any]:
    """The data set of `vramplan check --dataset`."""
    longer = one.distribution.count_longer(one.limit)
    return {
        "path": str(one.lengths.path),
        "tokens_by": one.lengths.source,
        "exact": one.lengths.exact,
        "samples": one.distribution.samples,
        "tokens": {
            "p50": one.distribution.quantile(0.5),
            "p95": one.distribution.quantile(0.95),
            "p99": one.distribution.quantile(0.99),
            "longest": one.distribution.longest,
            "sum": one.distribution.tokens,
        },
        "images": one.distribution.max_images,
        "limit": one.limit,
        "longer": longer,
        "longer_share": longer / one.distribution.samples,
        "longer_are": "dropped" if one.drops_longer else "cut",
        "rows": one.rows,
        "worst_length": one.worst_length,
        "padded_to": one.padded_to,
        "padding_share": one.padding_share,
        "near_length": one.near_length,
        "near_share": one.near_share,
        "trained_samples": one.trained_samples,
        "steps_per_epoch": one.steps_per_epoch,
        "fitting_length": one.fitting_length,
        "fitting_longer_share": None
        if one.fitting_length is None
        else one.distribution.count_longer(one.fitting_length) / one.distribution.samples,
    }


def fix(one: Fix) -> dict[str, Any]:
    """`vramplan check --fix --json`: the verdict on the changed text, that text, and what was changed."""
    return {
        **verdict(one.after),
        "fitted_before": one.before.fits,
        "changes": [change._asdict() for change in one.changes],
        "text": one.text,
        "least_bytes": one.lower_bound_bytes,
    }
