"""GRPO: the tape against TRL's own trainer, generation and vLLM in the timeline, what is refused."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.helpers import spec_of
from tests.recorded_runs import estimated_peaks
from tests.trl_grpo import recorded
from tests.trl_runs import GPU
from vramplan import estimate, suggest
from vramplan.analytic.generation import generation
from vramplan.analytic.rollout.vllm_share import least_bytes
from vramplan.errors import VramplanError
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.job import Job
from vramplan.memory.estimate import Estimate
from vramplan.memory.vllm import ASLEEP_BYTES, requested_bytes

RECORDED = recorded()
WORST, MEDIAN = 0.005, 0.0001
MODEL = "qwen2.5-0.5b"
SETTINGS: dict[str, Any] = {"task": "grpo", "sequence_length": 512, "prompt_length": 128, "micro_batch_size": 8}


def errors_of(row: dict[str, Any]) -> dict[str, float]:
    """The relative error of each phase's peak."""
    peaks = estimated_peaks(row, GPU)
    return {phase: abs(peaks[phase] / size - 1) for phase, size in row["peaks"].items()}


def held(found: Estimate) -> int:
    """Bytes that vLLM holds at the peak."""
    return found.by_category().get("vllm", 0) + found.by_category().get("vllm_weights", 0)


def searched() -> dict[str, Any]:
    return {name: value for name, value in SETTINGS.items() if name != "micro_batch_size"}


def name_of(row: dict[str, Any]) -> str:
    return f"{row['trl']} {row['model']} " + " ".join(f"{name}={value}" for name, value in row["job"].items())


@pytest.mark.parametrize("row", RECORDED[::8], ids=name_of)
def test_peaks_agree_with_trl(row: dict[str, Any]) -> None:
    assert max(errors_of(row).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_trl() -> None:
    assert len(RECORDED) >= 60
    assert any("scoring" in row["peaks"] for row in RECORDED)
    errors = {name_of(row): errors_of(row) for row in RECORDED}
    assert not [name for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


def test_vllm_takes_its_share_all_the_time() -> None:
    little, beside = (
        estimate(MODEL, "rtx4090", generate_with="vllm", vllm_share=share, **SETTINGS) for share in (0.2, 0.4)
    )
    asked = requested_bytes(beside.job, find_gpu("rtx4090"))
    assert beside.device_total_bytes - little.device_total_bytes == pytest.approx(asked / 2, rel=0.001)
    held = beside.by_category()
    assert held["vllm_weights"] == pytest.approx(494_032_768 * 2, rel=0.001)  # of Qwen/Qwen2.5-0.5B, in bf16
    assert held["vllm"] == pytest.approx(asked - held["vllm_weights"], rel=0.001)


@pytest.mark.full
@pytest.mark.parametrize("engine", ["vllm", "vllm_sleep"])
def test_a_smaller_share_is_proposed(engine: str) -> None:
    """The largest in hundredths with which the job fits, and no smaller one."""
    job = {**searched(), "generate_with": engine, "vllm_max_length": 1024}
    found = suggest(MODEL, "rtx3060-12gb", 8, vllm_share=0.95, **job)
    assert not found.plans
    effect = next(effect for effect in found.advice if "vllm_share" in effect.update)
    share = effect.update["vllm_share"]
    assert effect.fits
    assert effect.change == f"--vllm-share {share:g}"
    assert suggest(MODEL, "rtx3060-12gb", 8, vllm_share=share, **job).plans
    assert not suggest(MODEL, "rtx3060-12gb", 8, vllm_share=round(share + 0.02, 2), **job).plans


def test_vllm_asleep_leaves_its_share_to_training() -> None:
    small = {**SETTINGS, "micro_batch_size": 8, "prompt_length": 256, "sequence_length": 4096}
    awake, asleep = (
        estimate(MODEL, "rtx4090", generate_with=engine, vllm_share=0.4, **small) for engine in ("vllm", "vllm_sleep")
    )
    saved = awake.device_total_bytes - asleep.device_total_bytes
    asked = requested_bytes(awake.job, find_gpu("rtx4090"))
    assert 0 < saved <= asked - ASLEEP_BYTES
    large = estimate(MODEL, "rtx4090", generate_with="vllm_sleep", vllm_share=0.9, **SETTINGS)
    assert large.peak_phase == "generation"


def test_weights_that_vllm_shares_are_counted_once() -> None:
    """The base's weights are within vLLM's share, and stay while it sleeps."""
    lora = {**SETTINGS, "method": "lora", "vllm_share": 0.4}
    for engine in ("vllm", "vllm_sleep"):
        own, shared = (
            estimate(MODEL, "rtx4090", generate_with=engine, vllm_weights=one, **lora) for one in ("own", "shared")
        )
        weights = 494_032_768 * 2  # of Qwen/Qwen2.5-0.5B, in bf16
        held_own, held_shared = (held(one) for one in (own, shared))
        assert shared.by_category()["parameter"] == own.by_category()["parameter"] >= weights
        assert held_own - held_shared == pytest.approx(weights, rel=0.001)
        assert own.peak_phase == shared.peak_phase == ("backward" if engine == "vllm" else "generation")


def test_adapters_are_merged_on_the_whole_model_under_zero3() -> None:
    """TRL gathers all weights to merge adapters before it sends them to vLLM; whole weights go one after another."""
    sharded = {**SETTINGS, "strategy": "zero3", "num_gpus": 8, "generate_with": "vllm", "micro_batch_size": 1}
    lora, full = (estimate("qwen2.5-7b", "h100", method=method, **sharded) for method in ("lora", "full"))
    whole = 2 * spec_of("qwen2.5-7b").num_parameters  # type: ignore[operator]
    assert lora.phases["generation"] - lora.phases["loaded"] > 0.99 * whole
    assert full.phases["generation"] - full.phases["optimizer"] < 0.2 * whole


def test_generation_is_that_of_generate() -> None:
    """Beside weights and states, transformers' generate needs what it needs in a process of its own."""
    job = {**SETTINGS, "method": "full", "optimizer": "sgd", "autocast": "none", "sequence_length": 640}
    trained = estimate(MODEL, "a100-80gb", **job)
    alone = generation(
        spec_of(MODEL), Job(method="full", autocast="none", batches="padded"), find_gpu("a100-80gb"), 512, 128, batch=8
    )
    new = trained.phases["generation"] - trained.phases["loaded"]
    assert new == pytest.approx(alone.peak_allocated_bytes - alone.weight_bytes, rel=0.02)


def test_whole_logits_need_more_than_the_fused_head() -> None:
    fused, whole = (estimate(MODEL, "a100-80gb", loss=loss, **SETTINGS) for loss in ("chunked", "standard"))
    logits = 8 * 384 * 151_936 * 4
    assert whole.peak_allocated_bytes - fused.peak_allocated_bytes > 1.5 * logits


def test_the_largest_share_that_leaves_training_room() -> None:
    found = suggest(MODEL, "rtx4090", 16, solve="vllm-share", generate_with="vllm", **searched())
    assert found.solved is not None
    share = float(found.solved.value)  # type: ignore[arg-type]
    assert 0.5 < share < 1
    job = {**SETTINGS, "micro_batch_size": 1, "gradient_accumulation_steps": 16, "generate_with": "vllm"}
    assert estimate(MODEL, "rtx4090", vllm_share=share, **job).fits
    assert not estimate(MODEL, "rtx4090", vllm_share=share + 0.01, **job).fits


def test_pairs_have_whole_groups() -> None:
    found = suggest(MODEL, "rtx4090", 16, generate_with="vllm_server", steps_per_generation=1, **searched())
    assert {plan.micro_batch_size for plan in found.plans} == {8, 16}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_generations": 3}, "as TRL requires; gradient_accumulation_steps=3, num_generations=N with a divisor"),
        ({"num_generations": 1}, "needs at least 2"),
        ({"prompt_length": 512}, "less than"),
        ({"prompt_length": 0}, "at least one token"),
        ({"loss": "cut"}, "loss=cut with task=grpo is not modelled"),
        ({"loss": "liger", "strategy": "zero3", "num_gpus": 2}, "was not compared"),
        ({"task": "rloo", "loss": "liger"}, "loss=liger with task=rloo is not modelled"),
        ({"reference": "precomputed"}, "generated while the model trains"),
        ({"generate_with": "vllm", "vllm_share": 0.03}, "No available memory for the cache blocks"),
        ({"generate_with": "vllm", "vllm_share": 0.045}, "max seq len (32768), 384.0 MiB KV cache is needed"),
        ({"generate_with": "vllm", "vllm_max_length": 256}, "is shorter than sequence_length=512"),
        ({"vllm_max_length": 2048, "task": None, "prompt_length": None}, "no meaning without task=grpo"),
        ({"generate_with": "vllm", "vllm_tensor_parallel": 3, "num_gpus": 2}, "does not divide the number of GPUs"),
        ({"generate_with": "vllm_sleep", "expandable_segments": True}, "sleep mode"),
        ({"generate_with": "vllm", "method": "lora", "quantize": "int8"}, "TRL refuses"),
        (
            {"generate_with": "vllm", "vllm_weights": "shared", "method": "full"},
            "only weights that do not train are vLLM's too",
        ),
        ({"vllm_weights": "shared", "method": "lora"}, "no meaning without"),
        ({"batches": "packed"}, "TRL pads"),
        ({"task": None, "prompt_length": None, "num_generations": 4}, "no meaning without task=grpo"),
    ],
)
def test_one_line_says_what_is_wrong(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError) as caught:
        estimate(MODEL, "rtx4090", **{**SETTINGS, **settings})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "longest", "cache"),
    [
        ("llama-3.1-8b", 131_072, 32 * 2 * 8 * 128 * 2 * 131_072),
        ("qwen2.5-0.5b", 32_768, 24 * 2 * 2 * 64 * 2 * 32_768),
        # every sixth of 26 layers holds all tokens, the others 512 - 1 + 4096, in 289 blocks of 16
        ("gemma-3-1b-pt", 32_768, 2 * 1 * 256 * 2 * (4 * 32_768 + 22 * 289 * 16)),
    ],
)
def test_vllm_holds_a_text_of_the_models_positions(model: str, longest: int, cache: int) -> None:
    """vLLM's own message for Llama-3.1-8B: 16.00 GiB KV cache is needed for 131072 tokens."""
    job = Job(task="grpo", sequence_length=512, prompt_length=128, generate_with="vllm")
    weights, found, tokens = least_bytes(spec_of(model), job, find_gpu("h100"))
    assert (found, tokens) == (cache, longest)
    assert weights == pytest.approx(2 * (spec_of(model).num_parameters or 0), rel=0.001)
    shorter = job.model_copy(update={"vllm_max_length": 1024})
    assert least_bytes(spec_of(model), shorter, find_gpu("h100"))[1] < cache / 8
    split = job.model_copy(update={"vllm_tensor_parallel": 2, "num_gpus": 2})
    halves = least_bytes(spec_of(model), split, find_gpu("h100"))
    assert halves[0] == pytest.approx(weights / 2, rel=0.001)


def test_no_time_is_given_for_what_generates() -> None:
    assert estimate(MODEL, "rtx4090", **SETTINGS).step_time is None
