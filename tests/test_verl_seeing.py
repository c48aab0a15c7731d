"""verl's own FSDP engine of models that see on two emulated GPUs against the estimates, and what is read of them."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.recorded_runs import estimated_peaks
from tests.test_verl_rl import ACTOR, BATCH, MODEL, ROLLOUT, read_line, refusal
from tests.trl_sharing import GPU
from tests.verl_seeing import recorded
from vramplan import check, estimate
from vramplan.errors import ConfigError, UnsupportedError

RECORDED = recorded()
WORST, TOO_MUCH = 0.002, 0.034
"""Of phases, and of weights on their way to vLLM: verl sends them in another order than is counted, and needs no more.
Padded rows had no padding in the run that attention would take out."""
QWEN = f"{MODEL}.path=Qwen/Qwen2.5-VL-3B-Instruct"
SHARDED = (QWEN, f"{ACTOR}.strategy=fsdp2", "data.max_prompt_length=1024")


def errors_of(row: dict[str, Any]) -> dict[str, float]:
    """The relative error of each phase's peak but for loading's, when nothing is trained yet."""
    peaks = estimated_peaks(row, GPU)
    assert peaks.keys() == row["peaks"].keys()
    return {phase: peaks[phase] / size - 1 for phase, size in row["peaks"].items() if phase != "loaded"}


def are_near(errors: dict[str, float]) -> bool:
    return all(-WORST <= error <= (TOO_MUCH if phase == "generation" else WORST) for phase, error in errors.items())


def name_of(row: dict[str, Any]) -> str:
    return f"{row['seeing']} {row['job']['batches']} {row['job']['method']} FSDP {row['job']['fsdp']['version']}"


@pytest.mark.parametrize("row", RECORDED[:2], ids=name_of)
def test_peaks_agree_with_verl(row: dict[str, Any]) -> None:
    assert are_near(errors_of(row))


@pytest.mark.full
def test_all_runs_agree_with_verl() -> None:
    assert len(RECORDED) >= 2
    errors = [errors_of(row) for row in RECORDED]
    assert not [(row["job"], each) for row, each in zip(RECORDED, errors, strict=True) if not are_near(each)]
    assert median(abs(error) for each in errors for error in each.values()) <= 0.0001


def test_the_whole_model_trains() -> None:
    job = read_line(*SHARDED).job
    assert (job["vision"], job["projector"]) == ("train", "train")


def test_a_budget_has_as_many_images_as_longest_samples() -> None:
    """Eight texts of 512 tokens beside their prompts of 1,024."""
    budget = (f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=12288")
    found = read_line(*SHARDED, *budget)
    assert found.job["images"] == 12288 // 1536
    assert any(note.kind == "doubt" and note.key == "images" for note in found.notes)


def test_freezing_is_read_by_version() -> None:
    """0.9.1 stops at the key, 0.8 does not read it (workers/engine/fsdp), 0.7 freezes (workers/fsdp_workers.py)."""
    freeze = f"{ACTOR}.freeze_vision_tower=True"
    newest = read_line(*SHARDED, freeze)
    assert newest.version.startswith("0.8")
    assert newest.job["vision"] == "train"
    assert any("is not read by FSDP in verl 0.8" in note.text for note in newest.notes)
    assert read_line(*SHARDED, freeze, version="0.7.1").job["vision"] == "frozen"
    with pytest.raises(ConfigError, match=r"verl 0\.9\.1 has no such key and stops"):
        read_line(*SHARDED, freeze, version="0.9.1")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ((f"{MODEL}.path=google/gemma-3-4b-it",), "images of gemma3 were not compared with a run of verl's actor"),
        ((QWEN, f"{MODEL}.use_liger=True"), "was not compared with a run of a model that sees"),
        ((QWEN, "algorithm.adv_estimator=gae"), "a critic that sees is not modelled yet"),
        ((QWEN, f"{MODEL}.exclude_modules='.*lm_head.*'"), "exclude_modules='.*visual.*'"),
    ],
)
def test_what_is_refused(overrides: tuple[str, ...], named: str) -> None:
    assert named in refusal(*BATCH, *overrides)


def test_text_alone_is_refused() -> None:
    """verl runs the tower on an empty image, so that its weights have gradients."""
    with pytest.raises(UnsupportedError, match="runs its tower on an empty image"):
        estimate("Qwen/Qwen2.5-VL-3B-Instruct", "h100", **{**read_line(*SHARDED).job, "images": 0})


def test_a_script_of_geo3k_is_answered(tmp_path: Any) -> None:
    """Written by hand in the shape of verl's example of geometry questions."""
    script = tmp_path / "geo3k.sh"
    words = (
        "python3 -m verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", "data.train_batch_size=512",
        "data.max_prompt_length=1024", "data.max_response_length=2048", "data.image_key=images",
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-3B-Instruct", f"{ACTOR}.strategy=fsdp2",
        f"{MODEL}.use_remove_padding=True", f"{ACTOR}.ppo_mini_batch_size=128",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8",
        f"{ROLLOUT}.gpu_memory_utilization=0.6", f"{ROLLOUT}.n=5", "trainer.n_gpus_per_node=8",
    )  # fmt: skip
    script.write_text(" ".join(words), encoding="utf-8")
    verdict = check(script, "h100")
    assert verdict.estimate.job.image_size == (672, 672)  # the largest usual one whose tokens a prompt of 1,024 holds


def test_a_frozen_tower_under_fsdp_1_is_refused() -> None:
    """There its embedding and its merger are one flat weight with what trains."""
    words = (QWEN, f"{ACTOR}.freeze_vision_tower=True", f"{MODEL}.use_remove_padding=True")
    text = refusal(*BATCH, *words, version="0.7.1")
    assert "freeze_vision_tower" in text
    assert "check it with set=actor_rollout_ref.actor.strategy=fsdp2" in text
    assert "check it with set=actor_rollout_ref.actor.strategy=fsdp2" in refusal(*BATCH, QWEN, f"{MODEL}.lora_rank=8")


def test_a_model_that_the_script_does_not_name_has_as_many_images(tmp_path: Any) -> None:
    """The path of a folder says nothing of the model; of one of text alone nothing is said of images."""
    script = tmp_path / "grpo.sh"
    budget = (f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=12288")
    words = (*SHARDED, *BATCH, *budget, "algorithm.adv_estimator=grpo", f"{MODEL}.path=/data/checkpoint")
    script.write_text(f"python3 -m verl.trainer.main_ppo {' '.join(words)}", encoding="utf-8")
    sees, reads = (check(script, "h100", model=name) for name in ("Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen2.5-3B"))
    assert (sees.estimate.job.images, reads.estimate.job.images) == (8, 0)
    assert [any(note.key == "images" for note in one.reading.notes) for one in (sees, reads)] == [True, False]
