"""Results as JSON: what `--json` prints, of the types in :mod:`vramplan.render.json_types`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vramplan.render.figures import length
from vramplan.render.read_as import read_as

if TYPE_CHECKING:
    from vramplan.inputs.gpu import Gpu
    from vramplan.inputs.images import ProcessedImage, Size
    from vramplan.inputs.model_spec import ModelSpec
    from vramplan.memory.estimate import Estimate
    from vramplan.memory.generation import Generation
    from vramplan.memory.host import HostMemory
    from vramplan.planner.compare import Comparison
    from vramplan.planner.dataset_limits import DatasetLimits
    from vramplan.planner.fix import Fix
    from vramplan.planner.images import ImageSizeRow, Solved
    from vramplan.planner.search_result import CommunicationAdvice, Plan, Run, Search
    from vramplan.planner.verdict import Verdict
    from vramplan.render import json_types as types


def dumps(value: Any) -> str:
    """JSON text, indented."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def estimate(estimate: Estimate) -> types.EstimateData:
    """An estimate, in all outputs."""
    return {
        "model": estimate.model,
        "by": estimate.by,
        "card": estimate.card,
        "micro_batch_size": estimate.micro_batch_size,
        "gradient_accumulation_steps": estimate.gradient_accumulation_steps,
        "peak_tensor_bytes": estimate.peak_tensor_bytes,
        "peak_allocated_bytes": estimate.peak_allocated_bytes,
        "peak_reserved_bytes": estimate.peak_reserved_bytes,
        "device_total_bytes": estimate.device_total_bytes,
        "capacity_bytes": estimate.capacity_bytes,
        "headroom_bytes": estimate.headroom_bytes,
        "margin_bytes": estimate.margin_bytes,
        "fits": estimate.fits,
        "fits_without_margin": estimate.fits_without_margin,
        "peak_phase": estimate.peak_phase,
        "phases": estimate.phases,
        "terms": [
            {
                "category": term.category,
                "label": term.label,
                "bytes": term.num_bytes,
                "count": term.count,
                "formula": term.formula,
                "source": term.source,
            }
            for term in estimate.terms
        ],
        "cards": [asdict(share) for share in estimate.cards],
        "num_parameters": estimate.num_parameters,
        "num_trainable_parameters": estimate.num_trainable_parameters,
        "num_vision_parameters": estimate.num_vision_parameters,
        "image_tokens_per_sample": estimate.image_tokens_per_sample,
        "flops_per_micro_step": estimate.flops_per_micro_step,
        "step_time": step_time(estimate),
        "job": estimate.job.model_dump(mode="json"),
        "assumptions": list(estimate.assumptions),
        "notes": list(estimate.notes),
    }


def estimate_answer(found: Estimate, host: HostMemory, generation: Generation | None) -> types.EstimateAnswerData:
    """`vramplan estimate --json`: the estimate, and what comes beside training."""
    return {
        **estimate(found),
        "host": {
            "gpus_per_node": host.gpus_per_node,
            "phases": host.phase_bytes(),
            "pinned_bytes": host.pinned_bytes,
            "tensors": [asdict(one) for one in host.tensors],
            "notes": list(host.notes),
        },
        "generation": None if generation is None else asdict(generation),
    }


def step_time(estimate: Estimate) -> types.StepTimeData | None:
    """The time of an optimizer step."""
    time, job = estimate.step_time, estimate.job
    if time is None:
        return None
    has_tokens = length(job, estimate.assumptions) and job.lengths is None
    tokens_per_second = job.global_batch_size * job.sequence_length / time.seconds
    return {
        "seconds": round(time.seconds, 6),
        "low_seconds": round(time.low_seconds, 6),
        "high_seconds": round(time.high_seconds, 6),
        "micro_step_seconds": round(time.micro_step_seconds, 6),
        "communication_seconds": round(time.communication_seconds, 6),
        "optimizer_seconds": round(time.optimizer_seconds, 6),
        "samples_per_second": round(job.global_batch_size / time.seconds, 4),
        "tokens_per_second": round(tokens_per_second, 2) if has_tokens else None,
    }


def run_length(plan: Plan, gpu: Gpu) -> types.RunData:
    """The whole run with a plan."""
    from vramplan.planner.training_run import most_energy_kwh, run_seconds

    run, seconds, energy_kwh = plan.run, run_seconds(plan), most_energy_kwh(plan, gpu)
    assert run is not None
    return {
        "micro_steps": run.micro_steps,
        "optimizer_updates": run.optimizer_updates,
        "trainer_updates": run.trainer_updates,
        "warmup_updates": run.warmup_updates,
        "seconds": None if seconds is None else round(seconds, 3),
        "most_energy_kwh": None if energy_kwh is None else round(energy_kwh, 4),
    }


def plan(plan: Plan, gpu: Gpu) -> types.PlanData:
    """One entry of `plans`."""
    return {
        "micro_batch_size": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "data_parallel": plan.data_parallel,
        "global_batch_size": plan.global_batch_size,
        "peak_allocated_bytes": plan.estimate.peak_allocated_bytes,
        "peak_reserved_bytes": plan.estimate.peak_reserved_bytes,
        "device_total_bytes": plan.estimate.device_total_bytes,
        "headroom_bytes": plan.estimate.headroom_bytes,
        "fits": plan.estimate.fits,
        "relative_step_time": round(plan.relative_step_time, 4),
        "step_time": step_time(plan.estimate),
        "run": None if plan.run is None else run_length(plan, gpu),
    }


def communication(advice: CommunicationAdvice) -> types.CommunicationData:
    """What communication costs a plan."""
    return {
        "seconds": round(advice.seconds, 6),
        "share": round(advice.share, 4),
        "share_at_twice": round(advice.share_at_twice, 4),
        "enough_accumulation": advice.enough_accumulation,
        "gains": [
            {
                "change": gain.change,
                "seconds_per_sample": round(gain.seconds_per_sample, 6),
                "communication_share": round(gain.communication_share, 4),
                "device_total_bytes": gain.device_total_bytes,
            }
            for gain in advice.gains
        ],
    }


def search(search: Search, run: Run) -> types.SearchData:
    """`vramplan suggest --json`."""
    return {
        "model": search.model,
        "card": search.card.name,
        "num_gpus": search.job.num_gpus,
        "global_batch_size": search.global_batch_size,
        "plans": [plan(each, search.card) for each in search.plans],
        "recommended": plan(search.recommended, search.card) if search.recommended else None,
        "reason": search.reason,
        "communication": None if search.communication is None else communication(search.communication),
        "max_micro_batch_size": search.max_micro_batch_size,
        "rejected": [
            {
                "micro_batch_size": pair.micro_batch_size,
                "gradient_accumulation_steps": pair.gradient_accumulation_steps,
                "reason": pair.reason,
                "device_total_bytes": pair.device_total_bytes,
            }
            for pair in search.rejected
        ],
        "advice": [
            {
                "change": change.change,
                "why": change.why,
                "cost": change.cost,
                "saved_bytes": change.saved_bytes,
                "fits": change.fits,
                "micro_batch_size": change.micro_batch_size,
                "device_total_bytes": change.device_total_bytes,
            }
            for change in search.advice
        ],
        "warnings": list(search.warnings),
        "guidance": list(search.guidance),
        "learning_rate": search.learning_rate,
        "samples": run.samples,
        "epochs": run.epochs if run.samples is not None else None,
        "capacity_bytes": search.smallest.capacity_bytes,
        "estimate": estimate(search.estimate),
        "assumptions": list(search.smallest.assumptions),
        "notes": list(search.smallest.notes),
    }


def _count(size: Size, picture: ProcessedImage) -> types.CountData:
    return {
        "width": size.width,
        "height": size.height,
        "becomes": picture.description,
        "tokens": picture.tokens,
        "extra_tokens": picture.extra_tokens,
        "tiles": picture.tiles,
    }


def counts(rows: Sequence[tuple[Size, ProcessedImage]]) -> list[types.CountData]:
    """`vramplan images --json` for a model whose memory is not estimated."""
    return [_count(size, picture) for size, picture in rows]


def images(rows: Sequence[ImageSizeRow]) -> list[types.ImageData]:
    """`vramplan images --json`."""
    return [
        {
            **_count(row.size, row.image),
            "patches": row.image.patches,
            "sequence_length": row.sequence_length,
            "max_micro_batch_size": row.max_micro_batch_size,
            "estimate": estimate(row.estimate),
        }
        for row in rows
    ]


def solved(solution: Solved) -> types.SolvedData:
    """What `suggest --solve` adds."""
    return {
        "quantity": solution.quantity,
        "value": solution.value if isinstance(solution.value, int) else list(solution.value),
        "bounded_by_memory": solution.bounded,
        "estimate": estimate(solution.estimate),
    }


def model(spec: ModelSpec) -> dict[str, Any]:
    """One entry of `vramplan models --json`."""
    return spec.model_dump(mode="json")


def gpu(gpu: Gpu) -> dict[str, Any]:
    """One entry of `vramplan gpus --json`."""
    return gpu.model_dump(mode="json")


def verdict(verdict: Verdict) -> types.CheckData:
    """`vramplan check --json`."""
    plan = verdict.plan
    return {
        "fits": verdict.fits,
        "depends": verdict.depends,
        "cases": [
            {
                "sequence_length": case.sequence_length,
                "num_gpus": case.num_gpus,
                "need_bytes": case.need_bytes,
                "fits": case.fits,
            }
            for case in verdict.cases
        ],
        "groups": [
            {
                "name": group.name,
                "num_gpus": group.num_gpus,
                "need_bytes": group.need_bytes,
                "fits": group.fits,
                "text": group.text,
                "key": group.key,
            }
            for group in verdict.groups
        ],
        "read_as": read_as(verdict),
        "need_bytes": verdict.need_bytes,
        "free_bytes": verdict.free_bytes,
        "evaluation_bytes": verdict.evaluation_bytes,
        "framework": verdict.reading.framework,
        "framework_version": verdict.reading.version,
        "job": verdict.estimate.job.model_dump(mode="json"),
        "notes": [
            {"kind": note.kind, "key": note.key, "text": note.text, "place": note.place}
            for note in verdict.reading.notes
        ],
        "plan": None
        if plan is None
        else {
            "micro_batch_size": plan.micro_batch_size,
            "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        },
        "plan_warnings": verdict.plan_warnings,
        "shorter_length": verdict.shorter_length,
        "eval_batch_size": verdict.eval_batch_size,
        "advice": [
            {
                "change": counsel.change,
                "settings": [*counsel.settings, *counsel.batch],
                "fits": counsel.fits,
                "device_total_bytes": counsel.device_total_bytes,
                "cost": counsel.cost,
            }
            for counsel in verdict.advice
        ],
        "dataset": None if verdict.data is None else data_set(verdict.data),
        "estimate": estimate(verdict.estimate),
    }


def data_set(data: DatasetLimits) -> types.DatasetData:
    """The data set of `vramplan check --dataset`."""
    longer = data.distribution.count_longer(data.limit)
    return {
        "path": str(data.lengths.path),
        "tokens_by": data.lengths.source,
        "exact": data.lengths.exact,
        "samples": data.distribution.samples,
        "tokens": {
            "p50": data.distribution.quantile(0.5),
            "p95": data.distribution.quantile(0.95),
            "p99": data.distribution.quantile(0.99),
            "longest": data.distribution.longest,
            "sum": data.distribution.tokens,
        },
        "images": data.distribution.max_images,
        "limit": data.limit,
        "longer": longer,
        "longer_share": longer / data.distribution.samples,
        "longer_are": "dropped" if data.drops_longer else "cut",
        "rows": data.rows,
        "worst_length": data.worst_length,
        "padded_to": data.padded_to,
        "padding_share": data.padding_share,
        "near_length": data.near_length,
        "near_share": data.near_share,
        "trained_samples": data.trained_samples,
        "steps_per_epoch": data.steps_per_epoch,
        "fitting_length": data.fitting_length,
        "fitting_longer_share": None
        if data.fitting_length is None
        else data.distribution.count_longer(data.fitting_length) / data.distribution.samples,
    }


def fix(fix: Fix) -> types.FixData:
    """`vramplan check --fix --json`: the verdict on the changed text, that text, and what was changed."""
    return {
        **verdict(fix.after),
        "fitted_before": fix.before.fits,
        "changes": [
            {"key": change.key, "before": change.before, "after": change.after, "cost": change.cost}
            for change in fix.changes
        ],
        "text": fix.text,
        "least_bytes": fix.least_need_bytes,
    }


def comparison(comparison: Comparison) -> types.ComparisonData:
    """`vramplan compare --json`."""
    return {
        "sides": [{"title": side.title, **estimate(side.estimate), "fits": side.fits} for side in comparison.sides],
        "categories": [
            {"category": row.category, "bytes": list(row.bytes), "difference": row.difference}
            for row in comparison.categories
        ],
        "terms": [
            {"category": row.category, "label": row.label, "bytes": list(row.bytes), "difference": row.difference}
            for row in comparison.terms
        ],
        "job": {name: list(both) for name, both in comparison.job.items()},
    }
