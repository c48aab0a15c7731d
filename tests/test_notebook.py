"""Answers in Python and in notebooks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import ROOT

MODEL = "qwen2.5-0.5b"
CONFIG = """\
base_model: Qwen/Qwen2.5-0.5B
adapter: lora
lora_r: 8
lora_target_linear: true
sequence_len: 512
micro_batch_size: 2
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    config = tmp_path_factory.mktemp("notebook") / "train.yaml"
    config.write_text(CONFIG)
    return {
        "Search": vramplan.suggest(MODEL, "rtx3060", 8),
        "Estimate": vramplan.estimate(MODEL, "rtx3060"),
        "Verdict": vramplan.check(config, "rtx3060", num_gpus=1),
        "Fix": vramplan.fix(config, "rtx3060", num_gpus=1),
        "Comparison": vramplan.compare([MODEL, "pythia-160m"], "rtx3060"),
        "Table": vramplan.table([MODEL], ["rtx3060"]),
        "TokenBudgets": vramplan.token_budget(MODEL, "rtx3060", sequence_length=512, batches="packed"),
        "Explanation": vramplan.explain(ROOT / "tests" / "oom_logs" / "loss.txt"),
        "Hardware": vramplan.suggest_hardware(MODEL, ["rtx3060", "t4"], 8, max_gpus=1),
    }


def test_every_answer_has_a_line_and_a_picture(answers: dict[str, Any]) -> None:
    for name, answer in answers.items():
        assert type(answer).__name__ == name
        line = repr(answer)
        assert line.startswith(f"{name}(")
        assert "\n" not in line
        assert 15 < len(line) < 140
        html = answer._repr_html_()
        assert html.startswith("<")
        assert "<script" not in html
        assert len(html) < 100_000


def test_every_type_of_an_answer_is_covered(answers: dict[str, Any]) -> None:
    from vramplan.render.notebook import LINES
    from vramplan.result import Result

    names = {answer.__name__ for answer in Result.__subclasses__()}
    assert names <= LINES.keys() == answers.keys()


def test_the_picture_is_the_report_s(answers: dict[str, Any]) -> None:
    from vramplan.render.web.answer import of_search

    search = answers["Search"]
    assert of_search(search).pictures in search._repr_html_()
    assert repr(search) == f"Search({repr(search.recommended.estimate).removeprefix('Estimate(')}"


def test_what_a_configuration_needs_is_html_in_python_s_words(answers: dict[str, Any], tmp_path: Path) -> None:
    for name in ("Verdict", "Fix", "Explanation"):
        html = answers[name]._repr_html_()
        assert '<div class="verdict ' in html
        assert "╭" not in html
        assert "-v:" not in html
    config = tmp_path / "train.yaml"
    config.write_text(CONFIG.replace("sequence_len: 512", "sequence_len: 8192").replace("size: 2", "size: 16"))
    verdict = vramplan.check(config, "rtx3060ti", num_gpus=1)
    html = verdict._repr_html_()
    assert "Does not fit" in html
    assert "micro_batch_size: " in html or all(setting in html for setting in verdict.advice[0].settings)
    fixed = vramplan.fix(config, "rtx3060ti", num_gpus=1)
    assert fixed.changes
    for change in fixed.changes:
        assert f"<td>{change.key}</td>" in fixed._repr_html_()
        assert f"<td>{change.after}</td>" in fixed._repr_html_()
    depends = vramplan.check(config, "rtx3060ti")
    assert not re.search(r"(?<![\w-])--[a-z]", depends._repr_html_().partition("</style>")[2])


def test_changes_in_notebooks_are_named_as_in_python(answers: dict[str, Any]) -> None:
    search = vramplan.suggest("qwen2.5-7b", "rtx3060", 8)
    text = search._repr_html_().partition("</style>")[2]
    assert any(change.change.startswith("--") for change in search.advice)
    assert not re.search(r"(?<![\w-])--[a-z]", text)
    assert search.estimate.card == "rtx3060-12gb"
    for answer in (search, answers["Estimate"]):
        assert "RTX 3060 12GB" in repr(answer)
        assert "RTX 3060 12GB" in answer._repr_html_()
        assert "rtx3060-12gb" not in answer._repr_html_().partition("</style>")[2]


def test_the_public_names_are_listed() -> None:
    assert dir(vramplan) == sorted(vramplan.__all__)
    assert all(hasattr(vramplan, name) for name in vramplan.__all__)
    assert (ROOT / "vramplan" / "render" / "web" / "style.css").is_file()
