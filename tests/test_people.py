"""The corpus of tests/configs/people, and how its outcomes are judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import people
from vramplan.errors import UnsupportedError
from vramplan.inputs.job import Job

TRUTHS = people.truths()
KEYS = {
    "file",
    "kind",
    "framework",
    "task",
    "job",
    "model",
    "version",
    "mentions",
    "refusable",
    "why",
    "assumes",
    "tokenizer_length",
}
SCRIPT = "swift sft --model Qwen/Qwen2.5-0.5B --tuner_type lora --dataset d --torch_dtype bfloat16 --max_length 512\n"


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth["file"])
def test_every_truth_is_complete(truth: dict[str, Any]) -> None:
    assert truth.keys() <= KEYS
    assert truth["kind"] in ("answer", "refuse", "ask")
    assert (people.FOLDER / truth["file"]).is_file()
    assert truth["framework"]
    assert truth["why"]
    assert {field.split(".")[0] for field in truth.get("job", {})} <= Job.model_fields.keys()
    assert truth["kind"] == "answer" or truth["mentions"], "a refusal has to name something"
    assert truth["kind"] != "answer" or truth["job"]


def test_each_file_has_one_truth() -> None:
    names = [truth["file"] for truth in TRUTHS]
    assert len(names) == len(set(names))
    assert len(names) >= 75


@pytest.fixture
def judged(tmp_path: Path) -> Callable[..., people.Outcome]:
    def judge(text: str, **truth: Any) -> people.Outcome:
        (tmp_path / "dpo.sh").write_text(text)
        return people.outcome({"file": "dpo.sh", "framework": "ms-swift", "job": {}, **truth}, tmp_path)

    return judge


def test_an_answer_is_compared_field_by_field(judged: Callable[..., people.Outcome]) -> None:
    assert judged(SCRIPT, kind="answer", job={"method": "lora", "sequence_length": 512}).result == "right"
    outcome = judged(SCRIPT, kind="answer", job={"method": "full", "sequence_length": None}, version="2", model="gpt2")
    assert outcome.result == "misread"
    for field in ("method: lora, not full", "sequence_length: 512, not None", "version: 4", "model: "):
        assert field in outcome.detail
    assert judged(SCRIPT, kind="answer", mentions=["max_tokens"]).result == "misread"
    assert judged(SCRIPT, kind="refuse", mentions=["dpo"]).result == "misread"


def test_a_refusal_has_to_name_the_reason(judged: Callable[..., people.Outcome]) -> None:
    text = SCRIPT.replace("sft", "rlhf --rlhf_type ppo")
    assert judged(text, kind="refuse", mentions=["rlhf"]).result == "rightly refused"
    assert judged(text, kind="refuse", mentions=["dpo"]).result == "failed", "the file's own name is no reason"
    assert judged(text, kind="answer").result == "refused"
    assert judged(text, kind="answer", refusable="rlhf").result == "rightly refused"
    assert judged("echo hello\n", kind="answer", refusable=True).result == "failed", "nothing to read"


def test_a_traceback_is_a_failure(judged: Callable[..., people.Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise KeyError("x")

    monkeypatch.setattr(people, "_read", fail)
    assert judged(SCRIPT, kind="answer").detail == "KeyError: 'x'"


def test_the_command_prints_a_table_and_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise UnsupportedError("rm is not modelled")

    monkeypatch.setattr(people, "_read", refuse)
    assert people.main(["deepspeed", "axolotl/lisa"]) == 1
    printed = capsys.readouterr().out
    assert "all" in printed
    assert "failed: axolotl/lisa.yml" in printed
