"""Answers of :func:`vramplan.planner.suggest.suggest` that are kept between runs (:mod:`vramplan.disk_cache`).

A question that was answered before is answered without the estimator. An answer depends on the model, the GPU, what was
asked and vramplan's own code, which are its key; answers that depend on installed libraries (traces) are not kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from vramplan import disk_cache
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job, with_batch
from vramplan.inputs.links import Links
from vramplan.inputs.load import other_models
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.openrlhf import OpenRlhf
from vramplan.inputs.record import Record
from vramplan.inputs.sharding import Fsdp, Zero
from vramplan.inputs.swift import Swift
from vramplan.inputs.verl import Critic, Verl
from vramplan.memory.calibration import CONFIDENCE
from vramplan.memory.estimate import CardShare, Estimate, Term
from vramplan.planner.load import load_both
from vramplan.planner.search_result import CommunicationAdvice, Gain, LeverEffect, Plan, Rejected, RunLength, Search
from vramplan.progress import Progress, silent
from vramplan.step_time.step_time import ComputeTime, StepTime

KIND = "searches"
FORMAT = 6
"""Version of the layout of an answer."""


def suggest(
    model: str | ModelSpec,
    gpu: str | Gpu,
    global_batch: int,
    *,
    confidence: float = CONFIDENCE,
    progress: Progress = silent,
    trust_remote_code: bool = False,
    **options: Any,
) -> Search:
    """:func:`vramplan.planner.suggest.suggest`; an answer that was kept has no timelines.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    spec, card = load_both(model, gpu, confidence)
    # a setting that is solved for is an answer of its own
    keeps = disk_cache.is_enabled() and options.get("solve") is None
    key = _key(spec, card, global_batch, options) if keeps else None
    search = _load(key) if key is not None else None
    if search is None:
        from vramplan.planner.suggest import suggest as search_batches

        search = search_batches(
            spec, card, global_batch, confidence=confidence, progress=progress,
            trust_remote_code=trust_remote_code, **options,
        )  # fmt: skip
        if key is not None:
            _store(key, search)
    return search


def _key(spec: ModelSpec, card: Gpu, global_batch: int, options: Mapping[str, Any]) -> str | None:
    """Everything that an answer depends on; None if it may depend on more."""
    question = {name: value for name, value in sorted(options.items()) if value is not None}
    try:
        models = [one.model_dump(mode="json") for one in (spec, *other_models(question))]
        return json.dumps([FORMAT, models, card.model_dump(mode="json"), global_batch, question])
    except TypeError:  # an option that is no plain value
        return None


def _load(key: str) -> Search | None:
    content = disk_cache.load(KIND, key)
    if content is None:
        return None
    try:
        return _search(json.loads(content))
    except (ValueError, TypeError, KeyError, IndexError, AssertionError, RecursionError):
        return None


def _store(key: str, search: Search) -> None:
    estimates = [*(plan.estimate for plan in search.plans), search.smallest]
    batches = (with_batch(search.job, one.micro_batch_size, one.gradient_accumulation_steps) for one in estimates)
    if all(one.by == "analytic" and one.job == job for one, job in zip(estimates, batches, strict=True)):
        disk_cache.store(KIND, key, json.dumps(_data(search), separators=(",", ":")).encode())


# -- to JSON and back --------------------------------------------------------------------------------------------------


def _data(search: Search) -> dict[str, Any]:
    recommended = None if search.recommended is None else search.plans.index(search.recommended)
    return {**_plain(search), "recommended": recommended}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        left_out = {"timeline", "job"} if isinstance(value, Estimate) else {"recommended", "solved"}
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.name not in left_out}
    if isinstance(value, (Job, Gpu)):
        return value.model_dump(mode="json")
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _search(data: dict[str, Any]) -> Search:
    job = _job(data["job"])

    def estimate(data: dict[str, Any]) -> Estimate:
        terms, shares = (Term(**term) for term in data["terms"]), (CardShare(**share) for share in data["cards"])
        at = with_batch(job, data["micro_batch_size"], data["gradient_accumulation_steps"])
        times = {
            "compute": None if data["compute"] is None else ComputeTime(*data["compute"]),
            "step_time": None if data["step_time"] is None else StepTime(**data["step_time"]),
        }
        parts = {"terms": tuple(terms), "cards": tuple(shares), "job": at, **times}
        return Estimate(**{**_tuples(data), **parts})

    plans = tuple(
        Plan(
            **{
                **plan,
                "estimate": estimate(plan["estimate"]),
                "run": None if plan["run"] is None else RunLength(**plan["run"]),
            }
        )
        for plan in data["plans"]
    )
    values = {
        "card": _gpu(data["card"]),
        "job": job,
        "plans": plans,
        "recommended": None if data["recommended"] is None else plans[data["recommended"]],
        "rejected": tuple(Rejected(**pair) for pair in data["rejected"]),
        "advice": tuple(LeverEffect(**_tuples(effect)) for effect in data["advice"]),
        "smallest": estimate(data["smallest"]),
        "communication": _communication(data["communication"]),
    }
    return Search(**{**_tuples(data), **values})


def _communication(data: dict[str, Any] | None) -> CommunicationAdvice | None:
    return (
        None if data is None else CommunicationAdvice(**{**data, "gains": tuple(Gain(**one) for one in data["gains"])})
    )


def _gpu(data: dict[str, Any]) -> Gpu:
    return Gpu.model_construct(None, **{**_tuples(data), "links": Links.model_construct(None, **data["links"])})


def _job(data: dict[str, Any]) -> Job:
    kinds: dict[str, type[Record]] = {"zero": Zero, "fsdp": Fsdp, "verl": Verl, "openrlhf": OpenRlhf, "swift": Swift}
    critic = data["verl"].get("critic")
    if critic is not None:
        data["verl"] = {**data["verl"], "critic": Critic.model_construct(None, **critic)}
    parts = {name: kind.model_construct(None, **data[name]) for name, kind in kinds.items()}
    return Job.model_construct(None, **{**_tuples(data), **parts})


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    """Lists as tuples, which JSON does not have."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
