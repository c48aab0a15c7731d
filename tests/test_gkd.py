"""Distillation with a teacher: the tape against TRL's own trainer, generation in the timeline, what is refused."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.helpers import cli, spec_of
from tests.recorded_runs import errors_of
from tests.trl_gkd import recorded
from tests.trl_runs import GPU
from vramplan import estimate, suggest
from vramplan.errors import VramplanError
from vramplan.inputs.catalog import find_model
from vramplan.inputs.job import Job
from vramplan.measurements.probe_checks import check_method

RECORDED = recorded()
WORST, MEDIAN = 0.001, 0.0001
STUDENT, TEACHER = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B"
SETTINGS: dict[str, Any] = {
    "task": "gkd",
    "teacher": TEACHER,
    "sequence_length": 512,
    "prompt_length": 384,
    "generated_by": "none",
}


def name_of(row: dict[str, Any]) -> str:
    return f"{row['trl']} {row['model']} " + " ".join(f"{name}={value}" for name, value in row["job"].items())


@pytest.mark.parametrize("row", RECORDED[::8], ids=name_of)
def test_peaks_agree_with_trl(row: dict[str, Any]) -> None:
    assert max(errors_of(row, GPU).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_trl() -> None:
    assert len(RECORDED) >= 35
    assert all("teacher" in row["peaks"] for row in RECORDED if "teacher" in row["job"])
    errors = {name_of(row): errors_of(row, GPU) for row in RECORDED}
    assert not [name for name, each in errors.items() if max(each.values()) > WORST]
    assert median(error for each in errors.values() for error in each.values()) <= MEDIAN


def test_the_teacher_is_loaded_whole_beside_the_student() -> None:
    alone = estimate(STUDENT, "h100", sequence_length=512)
    taught = estimate(STUDENT, "h100", **SETTINGS)
    teacher = find_model(TEACHER)
    assert teacher is not None
    assert teacher.num_parameters is not None
    added = taught.phases["loaded"] - alone.phases["loaded"]
    assert added == pytest.approx(2 * teacher.num_parameters, rel=1e-3)
    assert taught.num_parameters == alone.num_parameters  # those of the student


def test_sharding_the_student_leaves_the_teacher_whole() -> None:
    alone, sharded = (
        estimate(STUDENT, "h100", method="full", num_gpus=number, strategy="zero2", **SETTINGS) for number in (1, 8)
    )
    copies = alone.phases["loaded"] - sharded.phases["loaded"]
    assert copies == pytest.approx(4 * (alone.num_parameters or 0) * 7 / 8, rel=0.01)  # the optimizer's, in fp32
    assert sharded.phases["loaded"] > 2 * 8e9


@pytest.mark.parametrize(("generated_by", "without_cache"), [("student", True), ("teacher", True), ("both", False)])
def test_completions_are_generated_before_each_micro_step(generated_by: str, without_cache: bool) -> None:
    job = {**SETTINGS, "generated_by": generated_by, "checkpointing": "full" if without_cache else "none"}
    made = estimate(STUDENT, "h100", gradient_accumulation_steps=2, **job)
    phases = [mark.phase for mark in made.timeline.marks]  # type: ignore[union-attr]
    step = phases[phases.index("generation") : phases.index("optimizer")]
    assert step == 2 * ["generation", "forward", "teacher", "forward", "backward"]
    given = estimate(STUDENT, "h100", gradient_accumulation_steps=2, **{**job, "generated_by": "none"})
    assert made.phases["forward"] == given.phases["forward"]
    assert made.phases["loaded"] < made.phases["generation"] < made.phases["forward"]
    assert made.step_time is None  # how long completions take is not known


def test_a_cache_is_kept_only_without_checkpointing() -> None:
    job = {**SETTINGS, "generated_by": "teacher", "micro_batch_size": 8}
    labels = {}
    for checkpointing in ("none", "full"):
        timeline = estimate(STUDENT, "h100", checkpointing=checkpointing, **job).timeline
        assert timeline is not None
        labels[checkpointing] = {kind.label for kind in timeline.kinds}
    assert "KV cache of the completions" in labels["none"]
    assert "KV cache of the completions" not in labels["full"]


def test_a_mixture_of_both_costs_more_than_one_direction() -> None:
    jsd, forward, reverse = (
        estimate(STUDENT, "h100", divergence=name, micro_batch_size=4, **SETTINGS)
        for name in ("jsd", "forward_kl", "reverse_kl")
    )
    assert jsd.phases["forward"] > reverse.phases["forward"] > forward.phases["forward"]


def test_a_search_finds_the_batch_that_fits_beside_the_teacher() -> None:
    search = suggest(STUDENT, "rtx4090", 16, **{**SETTINGS, "teacher": "Qwen/Qwen3-4B"})
    assert search.recommended is not None
    assert search.recommended.micro_batch_size >= 1
    alone = suggest(STUDENT, "rtx4090", 16, sequence_length=512)
    assert search.max_micro_batch_size < alone.max_micro_batch_size  # type: ignore[operator]


def test_a_teacher_larger_than_the_gpu_does_not_fit() -> None:
    made = estimate(STUDENT, "rtx4090", **{**SETTINGS, "teacher": "Qwen/Qwen3-14B"})
    assert not made.fits
    assert made.peak_phase == "forward"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"teacher": None}, "needs the model to learn from"),
        ({"teacher": "Qwen/Qwen2.5-7B"}, "vocab_size 151936 but the teacher model has vocab_size 152064"),
        ({"teacher": "no/such/model"}, "teacher=no/such/model: unknown model"),
        ({"teacher": "./nowhere.json"}, "no such file or folder"),
        ({"teacher": "os:getcwd"}, "give a Hub id"),
        ({"teacher": "Qwen/Qwen2.5-VL-7B-Instruct"}, "teacher=Qwen/Qwen2.5-VL-7B-Instruct"),
        ({"task": "dpo"}, "teacher=Qwen/Qwen3-8B has no meaning without task=gkd"),
        ({"task": None, "teacher": None, "prompt_length": None, "divergence": "jsd", "teacher_dtype": "bf16"}, "gkd"),
        ({"strategy": "fsdp", "num_gpus": 2}, "does not place a teacher under FSDP"),
        ({"batches": "packed"}, "GKDTrainer pads samples"),
        ({"loss": "liger"}, "compares whole logits"),
        ({"prompt_length": 512}, "leaves no token"),
        ({"divergence": "tv"}, "divergence"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError) as refused:
        estimate("Qwen/Qwen2.5-0.5B", "h100", **{**SETTINGS, "generated_by": "student", **settings})
    assert said in str(refused.value)


def test_a_loaded_model_can_teach_if_its_name_is_its_own() -> None:
    teacher = find_model(TEACHER)
    assert teacher is not None
    by_name = estimate(STUDENT, "h100", **SETTINGS)
    assert estimate(STUDENT, "h100", **{**SETTINGS, "teacher": teacher}) == by_name
    other = spec_of(TEACHER, num_hidden_layers=3)
    with pytest.raises(VramplanError, match="not the one of this name"):
        estimate(STUDENT, "h100", **{**SETTINGS, "teacher": other})


@pytest.mark.parametrize("task", [{"task": "gkd", "teacher": TEACHER}, {"task": "dpo"}])
def test_a_probe_runs_no_trainer(task: dict[str, Any]) -> None:
    with pytest.raises(VramplanError, match="is not probed"):
        check_method(spec_of("qwen3-0.6b"), Job(**task), "cuda")


def test_on_the_command_line() -> None:
    line = ["estimate", STUDENT, "--gpu", "h100", "--task", "gkd", "--seq-len", "512", "--generated-by", "none", "-v"]
    run = cli(*line, "--teacher", "qwen3-8b")
    assert run.returncode == 0
    assert "GKD as TRL 1.16 runs it, Qwen/Qwen3-8B in bf16 as teacher" in " ".join(run.stdout.split())
    refused = cli(*line)
    assert refused.returncode == 2
    assert "--task gkd needs the model to learn from" in refused.stderr
