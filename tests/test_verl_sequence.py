"""verl's GPUs that share the tokens of a micro-batch (Ulysses): against its own runs, and as `check` reads it."""

from __future__ import annotations

import shlex
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.helpers import cli
from tests.recorded_runs import estimated_peaks
from tests.trl_sharing import GPU
from tests.verl_sequence import recorded
from vramplan import check, estimate
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.detect import from_line
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.planner.read_config import read
from vramplan.render.figures import filled_by_tokens

RECORDED = recorded()
WORST, MEDIAN = 0.018, 0.001
KEY = "ulysses_sequence_parallel_size"
ACTOR, ROLLOUT, MODEL, REF = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model", "ref"))
QWEN = "Qwen/Qwen2.5-7B-Instruct"
COMMON = (
    f"{MODEL}.path={QWEN}", f"{MODEL}.use_remove_padding=True", "data.max_prompt_length=1024",
    "data.max_response_length=7168", f"{ROLLOUT}.n=8", f"{ROLLOUT}.tensor_model_parallel_size=2",
    f"{ROLLOUT}.gpu_memory_utilization=0.4",
)  # fmt: skip
DYNAMIC = (f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=8192")
SAMPLES = (f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8")
SHARED = f"{ACTOR}.{KEY}=2"


def errors_of(row: dict[str, Any]) -> dict[str, float]:
    """The relative error of each phase's peak but for loading's, when nothing is trained yet.

    What a forward with adapters leaves is freed as the optimizer's phase begins, which has no peak of the run.
    """
    peaks, skipped = estimated_peaks(row, GPU), {"loaded"}
    assert peaks.keys() == row["peaks"].keys()
    if row["job"]["method"] == "lora":
        skipped.add("optimizer")
        assert peaks["optimizer"] < max(row["peaks"].values()) / 2
    return {phase: abs(peaks[phase] / size - 1) for phase, size in row["peaks"].items() if phase not in skipped}


def line(*overrides: str, estimator: str = "grpo") -> str:
    return f"python3 -m verl.trainer.main_ppo algorithm.adv_estimator={estimator} {shlex.join((*COMMON, *overrides))}"


def parsed(*overrides: str, version: str | None = None, estimator: str = "grpo") -> ParsedConfig:
    return read(from_line(line(*overrides, estimator=estimator), None, {}), 1, version)


def test_no_tokens_are_shared_without_it() -> None:
    assert "sequence_parallel" not in parsed(*DYNAMIC).job["verl"]


@pytest.mark.parametrize("row", RECORDED[::5], ids=lambda row: f"{row['job']['num_gpus']} {row['job']['verl']}")
def test_peaks_agree_with_verl(row: dict[str, Any]) -> None:
    assert max(errors_of(row).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_verl() -> None:
    errors = {number: errors_of(row) for number, row in enumerate(RECORDED)}
    assert len(errors) >= 12
    assert not [(RECORDED[number]["job"], each) for number, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


@pytest.mark.parametrize("version", ["0.5.0", "0.7.1", "0.8.0", "0.9.1"])
def test_a_budget_of_tokens_is_a_gpus_part(version: str) -> None:
    """Two GPUs take 16,384 tokens together: as many micro-batches of 8 samples' 256 prompts as one budget of them."""
    alone, shared = (parsed(*DYNAMIC, *more, version=version).job for more in ((), (SHARED,)))
    assert shared["verl"] == alone["verl"] | {"sequence_parallel": 2, "scored_tokens": 8192}
    assert {**shared, "verl": None} == {**alone, "verl": None}
    assert (shared["batches"], shared["sequence_length"]) == ("packed", 8192)
    assert shared["gradient_accumulation_steps"] == 256 * 8 * 8192 // (8 * 8192)


def test_the_fullest_micro_batch_is_divided() -> None:
    notes = [note.text for note in parsed(*DYNAMIC, SHARED).notes if note.kind == "doubt"]
    assert any("up to 16,384 tokens" in text for text in notes), notes  # (16384 + 8192) * (24576 + 8192) / 24576 / 2


def test_samples_are_those_of_the_gpus_that_share_them() -> None:
    """256 x 8 samples over 4 groups of 2 GPUs."""
    found = parsed(*SAMPLES, SHARED).job
    assert (found["sequence_length"], found["micro_batch_size"], found["gradient_accumulation_steps"]) == (8192, 4, 128)
    assert found["verl"]["scored_tokens"] == 8 * 8192
    whole = parsed(f"{ACTOR}.ppo_micro_batch_size=16", SAMPLES[1], SHARED, version="0.7.1").job
    assert whole["micro_batch_size"] == 4


def test_the_engine_reads_fsdps_key() -> None:
    inner = f"{ACTOR}.fsdp_config.{KEY}=4"
    assert parsed(*DYNAMIC, inner).job["verl"]["sequence_parallel"] == 4
    old = parsed(*DYNAMIC, inner, version="0.7.1")
    assert "sequence_parallel" not in old.job["verl"]
    assert [note.kind for note in old.notes if note.key == inner.partition("=")[0]] == ["warning"]


def test_the_reference_may_have_another_size() -> None:
    """By default that of the actor's own key, not of its FSDP's."""
    refers = f"{ACTOR}.use_kl_loss=True"
    assert "reference_sequence_parallel" not in parsed(*DYNAMIC, SHARED, refers).job["verl"]
    apart = parsed(*DYNAMIC, f"{ACTOR}.fsdp_config.{KEY}=2", refers).job["verl"]
    assert (apart["sequence_parallel"], apart["reference_sequence_parallel"]) == (2, 1)
    other = (*DYNAMIC, SHARED, refers, f"{REF}.{KEY}=4")
    assert parsed(*other).job["verl"]["reference_sequence_parallel"] == 4
    with pytest.raises(UnsupportedError, match=f"{REF}.{KEY}: 4 beside 2 of the actor") as caught:
        parsed(*other, version="0.7.1")
    assert f"{REF}.{KEY}=2" in str(caught.value).partition("check it with")[2]


def test_the_critic_has_a_size_of_its_own() -> None:
    """Which up to 0.7 is its own key, and later FSDP's alone."""
    own, inner = f"critic.{KEY}=2", f"critic.fsdp.{KEY}=2"
    model = (f"critic.model.path={QWEN}", *DYNAMIC, "critic.model.use_remove_padding=True")
    old = parsed(*model, own, version="0.7.1", estimator="gae").job["verl"]["critic"]
    assert (old["sequence_parallel"], old["sequence_length"], old["scored_tokens"]) == (2, 32768, 32768)
    late = parsed(*model, own, estimator="gae")
    assert "sequence_parallel" not in late.job["verl"]["critic"]
    assert any("has no effect from verl 0.8 on" in note.text for note in late.notes)
    assert parsed(*model, inner, estimator="gae").job["verl"]["critic"]["sequence_parallel"] == 2


@pytest.mark.parametrize(
    ("overrides", "error", "text"),
    [
        ((f"{ACTOR}.{KEY}=3",), ConfigError, "3 does not divide 8 GPUs: verl stops at that"),
        ((SHARED, f"{MODEL}.use_remove_padding=False"), ConfigError, "2 without use_remove_padding: verl stops"),
    ],
)
def test_what_stops_verl(overrides: tuple[str, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        parsed(*SAMPLES, *overrides)


def test_heads_that_gpus_cannot_share() -> None:
    """28 heads of queries, and 4 of keys."""
    job = parsed(*DYNAMIC, f"{ACTOR}.{KEY}=8").job
    with pytest.raises(ConfigError, match="28 heads of queries and 4 of keys, which 8 GPUs cannot share"):
        estimate(QWEN, "h100", **job)


def test_layers_without_attention_are_refused() -> None:
    job = parsed(*DYNAMIC, SHARED).job
    with pytest.raises(UnsupportedError, match="has layers without attention"):
        estimate("Qwen/Qwen3-Next-80B-A3B-Instruct", "h200", **job)


def test_logits_are_those_of_a_gpus_part(tmp_path: Path) -> None:
    """Of samples it has half of the tokens; a budget is a GPU's however many share it."""
    needs = {}
    for name, own in (("samples", SAMPLES), ("tokens", DYNAMIC)):
        for gpus in (1, 2):
            script = tmp_path / f"{name}{gpus}.sh"
            script.write_text(line(*own, f"{ACTOR}.{KEY}={gpus}"), encoding="utf-8")
            needs[name, gpus] = check(script, "h200").estimate.phases["backward"]
    logits = 4 * 8192 * 152_064 * 2
    assert needs["samples", 1] - needs["samples", 2] > logits / 2
    assert 0 < needs["tokens", 2] - needs["tokens", 1] < 0.1 * needs["tokens", 1]


def test_supervised_fine_tuning_shares_tokens() -> None:
    words = f"model.path={QWEN} data.train_batch_size=64 engine.{KEY}=2 data.max_length=4096"
    found = read(from_line(f"torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer {words}", None, {}), 1).job
    assert (found["verl"], found["sequence_length"]) == ({"sequence_parallel": 2, "samples": 64}, 8192)
    assert found["gradient_accumulation_steps"] == 64 // 4 * 4096 // (2 * 8192)


@pytest.mark.parametrize("changes", [{"num_gpus": 3, "vllm_tensor_parallel": 1}, {"batches": "padded"}])
def test_settings_that_cannot_be(changes: dict[str, Any]) -> None:
    job = parsed(*SAMPLES, SHARED).job
    with pytest.raises(ConfigError, match="sequence_parallel"):
        estimate(QWEN, "h100", **{**job, **changes})


def test_the_plan_counts_groups(tmp_path: Path) -> None:
    """8 GPUs take 4 micro-batches at a time; the first line says so."""
    script = tmp_path / "grpo.sh"
    script.write_text(line(*SAMPLES, SHARED), encoding="utf-8")
    words = " ".join(cli("check", str(script), "--gpu", "h200").stdout.replace("│", "").split())
    assert "2 GPUs share a micro-batch" in words
    assert "4 × 128 × 4 = 2,048 micro-batch × accumulation × groups of 2 GPUs = global batch" in words


def step_of(path: Path, *words: str) -> str:
    """What `check` says about the batch of a command."""
    path.write_text(line(*words), encoding="utf-8")
    return " ".join(filled_by_tokens(check(path, "h200", look_further=False).estimate.job) or ("",))


def test_the_samples_of_a_step_are_those_of_the_configuration(tmp_path: Path) -> None:
    """256 prompts x 8, however many micro-batches the budget makes of them and GPUs share one."""
    path = tmp_path / "run.sh"
    assert step_of(path, *DYNAMIC) == "2,048 samples a step in up to 256 micro-batches of 8,192 tokens on each GPU"
    shared = "in up to 256 micro-batches of 16,384 tokens on each group of 2 GPUs"
    assert step_of(path, *DYNAMIC, SHARED) == f"2,048 samples a step {shared}"
    assert step_of(path, *SAMPLES) == ""
    words = f"model.path={QWEN} data.train_batch_size=64 data.max_length=4096 data.max_token_len_per_gpu=16384"
    supervised = read(from_line(f"torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer {words}", None, {}), 1).job
    assert (supervised["verl"]["samples"], supervised["gradient_accumulation_steps"]) == (64, 2)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((f"{ACTOR}.ppo_max_token_len_per_gpu=4095", SHARED), "ppo_max_token_len_per_gpu: 8,190 of 2 GPUs is less"),
        ((f"{ROLLOUT}.log_prob_max_token_len_per_gpu=4096",), "log_prob_max_token_len_per_gpu: 4,096 is less"),
    ],
)
def test_a_budget_that_holds_no_sample_stops_verl(words: tuple[str, ...], named: str) -> None:
    least = "4,096" if SHARED in words else "8,192"
    with pytest.raises(ConfigError, match=f"{named} than a prompt .* verl stops at one; {least} or more"):
        parsed(*DYNAMIC, *words)
