"""ZeRO and FSDP against DeepSpeed's and torch's own code (tests/sharing.json).

The cases are runs of transformers' Trainer on the CPU with every storage of one rank watched. Small models, so that
what the strategies add is a large part of what there is.
"""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import card_of
from vramplan.analytic import estimator
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.estimate import Estimate
from vramplan.memory.timeline import Timeline

CASES = json.loads((Path(__file__).parent / "sharing.json").read_text())
SCALARS = 1024
"""Bytes of norms, step counters and the like, which the cases count one by one."""
TABLE = 2048
"""Bitsandbytes' table of 256 levels, which a process has once, and the same."""


def job_of(case: dict[str, Any]) -> Job:
    return Job.model_validate_json(json.dumps(case["job"]))


def estimate(case: dict[str, Any]) -> Estimate:
    model = case["model"]
    kind = model.get("model_type", "llama")
    spec = ModelSpec(name="small", model_type=kind, config=model, processor=case.get("processor", {}))
    return estimator.estimate(spec, job_of(case), card_of())


def last_peaks(timeline: Timeline) -> dict[str, int]:
    """Bytes as asked for at each phase's last peak."""
    sizes = [0 if storage.in_kernel else storage.num_bytes for storage in timeline.storages]
    levels = list(accumulate([sizes[event] if event >= 0 else -sizes[~event] for event in timeline.events]))
    ends = [mark.first_event for mark in timeline.marks[1:]] + [len(timeline.events)]
    peaks = {
        mark.phase: max(levels[max(0, mark.first_event - 1) : end])
        for mark, end in zip(timeline.marks, ends, strict=True)
    }
    return peaks | {"loaded": levels[ends[0] - 1]}


def assert_peaks(timeline: Timeline, case: dict[str, Any], rel: float) -> None:
    """Each phase's peak is the measured one."""
    found, few = last_peaks(timeline), TABLE if job_of(case).quantize != "none" else SCALARS
    held = case.get("held", 0)
    assert {phase: found[phase] for phase in case["bytes"]} == {
        phase: pytest.approx(num_bytes, rel=rel, abs=few + held if phase == "optimizer" else few)
        for phase, num_bytes in case["bytes"].items()
    }


@pytest.mark.parametrize("name", CASES["zero"])
def test_zero(name: str) -> None:
    case = CASES["zero"][name]
    timeline = estimate(case).timeline
    assert timeline is not None
    assert_peaks(timeline, case, 0.005)


def fsdp_events(timeline: Timeline) -> list[int]:
    """What FSDP 2 allocates and frees in the second step, in order; the weights of a group in one."""
    first, last = [mark.first_event for mark in timeline.marks if mark.phase == "optimizer"][:2]
    found: list[tuple[str, int]] = []
    for event in timeline.events[first:last]:
        storage = timeline.storage(event if event >= 0 else ~event)
        gradient = storage.category == "gradient" and storage.formula == "own rows"
        if not storage.num_bytes or not (storage.category == "communication" or (gradient and event >= 0)):
            continue
        size = storage.num_bytes if event >= 0 else -storage.num_bytes
        kind = f"{storage.label} {event >= 0}"
        if found and found[-1][0] == kind and "gathered weights" in kind:
            found[-1] = (kind, found[-1][1] + size)
        else:
            found.append((kind, size))
    return [size for _, size in found]


@pytest.mark.parametrize("name", CASES["fsdp"])
def test_fsdp(name: str) -> None:
    case = CASES["fsdp"][name]
    timeline = estimate(case).timeline
    assert timeline is not None
    if "bytes" in case:
        assert_peaks(timeline, case, 0.01)
    else:
        peak = max(timeline.live_bytes(with_kernels=False))
        blocks = 0.025 if "lora" in name and case["job"]["fsdp"]["version"] == 1 else 0.01
        assert peak == pytest.approx(case["peak_bytes"], rel=blocks), "short of it by blocks that hold a few bytes each"
    if "events" in case:
        assert fsdp_events(timeline) == case["events"]


@pytest.mark.parametrize(
    "settings",
    [{}, {"loop": "plain", "gradient_accumulation_steps": 2}, {"lengths": (100, 300, 400, 512)}, {"trace": True}],
    ids=["trainer", "plain", "lengths", "trace"],
)
def test_ddp_replaces_its_buckets_once(settings: dict[str, Any]) -> None:
    """One for all gradients in the first backward, then those of 25 MiB (reducer.cpp: rebuild_buckets)."""
    job = {"num_gpus": 2, "method": "full", "sequence_length": 512} | settings
    by = "trace" if job.pop("trace", False) else "analytic"
    if by == "trace":
        pytest.importorskip("transformers")
    timeline = vramplan.estimate("qwen2.5-0.5b", "a100-80gb", by=by, **job).timeline
    assert timeline is not None
    buckets = [storage.label.startswith("DDP gradient bucket") for storage in timeline.kinds]
    firsts = [storage.label.endswith("of the first backward") for storage in timeline.kinds]
    freed = [timeline.kind_of[~event] for event in timeline.events if event < 0]
    assert sum(firsts[kind] for kind in freed) == sum(buckets[kind] for kind in freed) == 1
    (first,) = {storage.num_bytes for storage in timeline.kinds if storage.label.endswith("of the first backward")}
    end = [timeline.kinds[kind].num_bytes for kind in timeline.live_at(len(timeline.events) - 1) if buckets[kind]]
    assert sum(end) == first
    assert len(end) > 20


def test_more_cards_need_less_each() -> None:
    """Eight cards at stage 3 hold an eighth of weights, gradients and states, and what is gathered at a time."""
    found = {
        strategy: vramplan.estimate(
            "Qwen/Qwen2.5-7B", "a100-80gb", method="full", num_gpus=8, strategy=strategy, sequence_length=1024
        )
        for strategy in ("ddp", "zero1", "zero2", "zero3", "fsdp")
    }
    needs = {strategy: one.peak_allocated_bytes for strategy, one in found.items()}
    assert needs["zero2"] < needs["zero1"]
    assert max(needs["zero3"], needs["fsdp"]) < needs["zero2"]
    assert found["zero3"].fits
    assert not found["zero1"].fits or needs["zero1"] > needs["zero3"]


def test_weights_that_are_flattened_on_the_host() -> None:
    """Where a card has no room for both, the flat copy is made on the host (0.19, stage_1_and_2.py: __init__)."""
    job = {"method": "full", "num_gpus": 2, "strategy": "zero2", "offload": "optimizer", "loss": "liger"}
    small, large = (
        vramplan.estimate("Qwen/Qwen2.5-7B", gpu, **job, sequence_length=1024) for gpu in ("rtx4090", "a100-80gb")
    )
    assert small.peak_allocated_bytes < 24 * 2**30 < large.peak_allocated_bytes


FSDP1 = {"strategy": "fsdp", "fsdp": {"version": 1}}
NF4 = {"quantize": "nf4", "autocast": "bf16"}
REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"strategy": "fsdp", "offload": "optimizer"}, "offload"),
    ({"offload": "optimizer"}, "offload"),
    ({"strategy": "zero2", "offload": "all"}, "offload"),
    ({"strategy": "zero0", "offload": "optimizer"}, "from stage 1 on"),
    ({"strategy": "fsdp", "fsdp": {"replicas": 2}}, "hybrid sharding needs FSDP version 1"),
    ({"strategy": "zero1", "offload": "optimizer", "zero": {"overlap_comm": True}}, "overlap_comm at stage 1"),
    ({"strategy": "zero2", "autocast": "bf16"}, "autocast"),
    ({"strategy": "zero3", "quantize": "int8"}, "int8"),
    ({"strategy": "zero3", "quantize": "nf4", "quant_storage": "fp32"}, "quant_storage"),
    ({"strategy": "zero3", "modules_to_save": ["lm_head"]}, "modules_to_save"),
    ({"strategy": "fsdp", "quantize": "int8"}, "int8"),
    ({"strategy": "fsdp", "quantize": "nf4", "quant_storage": "fp32"}, "quant_storage"),
    (FSDP1 | NF4 | {"quant_storage": "uint8"}, "uint8"),
    (FSDP1 | NF4 | {"prepare_for_kbit_training": True}, "prepare_for_kbit_training"),
    (FSDP1 | NF4 | {"autocast": "none"}, "autocast"),
    (FSDP1 | NF4 | {"fsdp": {"version": 1, "reshard_after_forward": False}}, "SHARD_GRAD_OP"),
    (FSDP1 | {"fp32_norms": True}, "fp32_norms"),
    (FSDP1 | {"method": "dora"}, "dora"),
    (FSDP1 | {"modules_to_save": ["lm_head"]}, "modules_to_save"),
)
"""What stops, and with what: all but the first seven are errors of the libraries, met by running them."""


@pytest.mark.parametrize(("job", "said"), REFUSED)
def test_what_is_refused(job: dict[str, Any], said: str) -> None:
    with pytest.raises((UnsupportedError, ConfigError), match=said):
        vramplan.estimate("Qwen/Qwen2.5-7B", "a100-80gb", num_gpus=2, **job)


REFUSED_MODELS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("Qwen/Qwen2.5-0.5B", {"strategy": "fsdp", "modules_to_save": ["embed_tokens"]}, "head is its embedding"),
    ("google-bert/bert-base-uncased", {"strategy": "fsdp"}, "bert is not modelled"),
    ("openai/clip-vit-base-patch16", {"strategy": "zero3"}, "logit_scale"),
    ("llava-hf/llava-1.5-7b-hf", {"strategy": "fsdp"}, "CLIPTextEmbeddings"),
    ("google/gemma-3-4b-it", {"strategy": "fsdp"}, "SiglipTextEmbeddings"),
    ("Qwen/Qwen2.5-VL-3B-Instruct", {**FSDP1, "method": "full"}, "version 1"),
    ("Qwen/Qwen2.5-VL-3B-Instruct", {**FSDP1, "method": "full", "projector": "train"}, "version 1"),
    ("Qwen/Qwen2.5-VL-3B-Instruct", {"strategy": "zero3", "quantize": "nf4"}, "quantize=nf4"),
    ("Qwen/Qwen3-30B-A3B", {"strategy": "zero3"}, "stacked experts"),
)


@pytest.mark.parametrize(("model", "job", "said"), REFUSED_MODELS)
def test_models_that_are_refused(model: str, job: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        vramplan.estimate(model, "a100-80gb", num_gpus=2, **job)


PUBLISHED = [(2, "none", 2, 33.738), (2, "none", 4, 33.738), (2, "bf16", 8, 67.461), (4, "bf16", 4, 33.738)]
"""Cards, autocast, micro-batch and max_memory_allocated in GiB of Mistral 7B trained whole by FSDP 1 on A100s, 4096
tokens, adamw_torch (foundation-model-stack/fms-acceleration, scripts/benchmarks/refs/a100_80gb*.csv): the optimizer's
step is the peak, so that weights, gradients, states and the roots of a whole part are what is measured."""


@pytest.mark.parametrize(("cards", "autocast", "micro", "measured"), PUBLISHED)
def test_published(cards: int, autocast: str, micro: int, measured: float) -> None:
    job = {"method": "full", "autocast": autocast, "optimizer": "adamw_torch", "attention": "flash", "loss": "sliced"}
    found = vramplan.estimate(
        "mistralai/Mistral-7B-v0.1",
        "a100-80gb",
        **job,
        micro_batch_size=micro,
        sequence_length=4096,
        num_gpus=cards,
        strategy="fsdp",
        fsdp={"version": 1, "backward_prefetch": "pre"},
    )
    assert found.peak_allocated_bytes / 2**30 == pytest.approx(measured, rel=1e-3)
