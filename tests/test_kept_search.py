"""Searches that are kept between runs: the same answers, and none that was meant for another question."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from vramplan import disk_cache
from vramplan.planner import kept_search
from vramplan.planner.search_result import Run, Search
from vramplan.planner.suggest import suggest
from vramplan.render import json_output

QUESTIONS: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("qwen2.5-0.5b", "rtx4090", 16, {}),
    ("qwen2.5-7b", "rtx3060-12gb", 16, {"method": "full"}),
    ("llama-3.1-8b", "rtx4090", 8, {"method": "qlora", "strategy": "device_map", "num_gpus": 2}),
    ("qwen2.5-vl-7b-instruct", "a100-80gb", 8, {"image_size": (448, 448)}),
    ("llama-3.1-8b", "h100", 64, {"method": "full", "strategy": "zero3", "num_gpus": 8, "lora_targets": None}),
    ("qwen2.5-0.5b", "rtx4090", 16, {"lengths": (300, 1200), "samples": 1000, "epochs": 2.0}),
    ("qwen2.5-0.5b", "rtx4090", 16, {"base_lr": 1e-4, "base_batch": 8, "lora_targets": ("q_proj", "v_proj")}),
)


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VRAMPLAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VRAMPLAN_NO_CACHE", raising=False)
    monkeypatch.setattr(disk_cache, "_disabled", False)


def _entries(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize(("model", "gpu", "batch", "options"), QUESTIONS)
def test_a_kept_answer_is_the_answer(
    monkeypatch: pytest.MonkeyPatch, model: str, gpu: str, batch: int, options: dict[str, Any]
) -> None:
    fresh = suggest(model, gpu, batch, **options)
    first = kept_search.suggest(model, gpu, batch, **options)
    monkeypatch.setattr("vramplan.planner.suggest.suggest", _must_not_run)
    kept = kept_search.suggest(model, gpu, batch, **options)
    run = Run(options.get("samples"), options.get("epochs", 1.0))
    for search in (first, kept):
        assert json_output.search(search, run) == json_output.search(fresh, run)
        assert _without_timelines(search) == _without_timelines(fresh)
    assert kept.recommended is None or any(plan is kept.recommended for plan in kept.plans)


def _must_not_run(*_: Any, **__: Any) -> Search:
    raise AssertionError("the answer was not kept")


def _without_timelines(search: Search) -> dict[str, Any]:
    """Every field of the answer; timelines are not compared."""
    return {field.name: getattr(search, field.name) for field in fields(search)}


@pytest.mark.parametrize(
    ("gpu", "batch", "options"),
    [
        ("rtx4090", 32, {}),
        ("rtx3090", 16, {}),
        ("rtx4090", 16, {"confidence": 0.5}),
        ("rtx4090", 16, {"sequence_length": 1024}),
        ("rtx4090", 16, {"advice": False}),
        ("rtx4090", 16, {"samples": 100}),
    ],
)
def test_another_question_has_another_answer(gpu: str, batch: int, options: dict[str, Any]) -> None:
    kept_search.suggest("qwen2.5-0.5b", "rtx4090", 16)
    other = kept_search.suggest("qwen2.5-0.5b", gpu, batch, **options)
    assert _without_timelines(other) == _without_timelines(suggest("qwen2.5-0.5b", gpu, batch, **options))


def _of_layers(file: Path, layers: int) -> str:
    """A configuration of a model with so many layers."""
    config = {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14}
    config |= {"num_hidden_layers": layers, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True}
    config |= {"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
    file.write_text(json.dumps(config))
    return str(file)


def test_a_changed_model_is_another_model(tmp_path: Path) -> None:
    needs = []
    for layers in (24, 48):
        model = _of_layers(tmp_path / "config.json", layers)
        needs.append(kept_search.suggest(model, "rtx4090", 16).smallest.device_total_bytes)
    assert needs[0] < needs[1]


VERL: dict[str, Any] = {
    "task": "grpo", "loss": "log_probs", "loop": "plain", "strategy": "fsdp", "fsdp": {"version": 1}, "num_gpus": 2,
    "generate_with": "vllm_server", "batches": "unpadded", "sequence_length": 256, "prompt_length": 64,
}  # fmt: skip
OPENRLHF: dict[str, Any] = {
    "task": "grpo", "loss": "kept_log_probs", "loop": "plain", "strategy": "zero3", "autocast": "none", "num_gpus": 2,
    "generate_with": "vllm_server", "batches": "unpadded", "sequence_length": 256,
}  # fmt: skip


@pytest.mark.parametrize("framework", ["verl", "openrlhf"])
def test_a_changed_critic_is_another_model(tmp_path: Path, framework: str) -> None:
    needs = []
    for layers in (4, 8):
        model = _of_layers(tmp_path / "config.json", layers)
        critic = {"verl": {"critic": {"model": model, "sequence_length": 256, "scored_tokens": 256}}}
        job = {**VERL, **critic} if framework == "verl" else {**OPENRLHF, "openrlhf": {"critic": model}}
        first, again = (kept_search.suggest("qwen2.5-0.5b", "rtx4090", 2, advice=False, **job) for _ in range(2))
        assert first.smallest.timeline is not None
        assert again.smallest.timeline is None  # it was kept
        assert again.job == first.job
        needs.append(first.smallest.device_total_bytes)
    assert needs[0] < needs[1]


def test_content_that_is_no_answer_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = kept_search.suggest("qwen2.5-0.5b", "rtx4090", 16)
    for content in (b"", b"{}", b"[1, 2", b'{"plans": [{}]}', b"\xff", b"null", b"[" * 100_000):
        monkeypatch.setattr(disk_cache, "load", lambda kind, key, content=content: content)
        assert _without_timelines(kept_search.suggest("qwen2.5-0.5b", "rtx4090", 16)) == _without_timelines(fresh)


def test_what_is_solved_for_is_not_kept(tmp_path: Path) -> None:
    kept_search.suggest("qwen2.5-0.5b", "rtx4090", 16, solve="seq-len")
    assert not _entries(tmp_path)


def test_nothing_is_kept_if_that_is_not_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMPLAN_NO_CACHE", "1")
    kept_search.suggest("qwen2.5-0.5b", "rtx4090", 16)
    assert not _entries(tmp_path)


def test_a_kept_job_has_all_its_groups() -> None:
    first, again = (kept_search.suggest("smollm2-135m", "rtx4090", 4, sequence_length=128) for _ in range(2))
    assert again.job == first.job
    assert type(again.job.verl) is type(first.job.verl)
