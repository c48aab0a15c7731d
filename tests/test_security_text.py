"""Hostile names in what is shown: no escape reaches a terminal, no element a page, no column a table."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.helpers import cli, spec_of
from vramplan.visible import visible, visible_lines

ESCAPES = "\x1b[2J\x1b]0;t\x07\x9b31m\r\x08\u202e\u2066\u200b"
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
CONFIG = {**spec_of("Qwen/Qwen2.5-0.5B").config, "model_type": "qwen2"}
HTML = "@DATA@@LAW@<img src=x onerror=alert(1)>'\"&`|$\\frac{[b](javascript:1)[bold]"


def model(folder: Path, name: str, **config: object) -> Path:
    """A model's folder of this name."""
    path = folder / name
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    return path


def shown(folder: Path, *arguments: str) -> str:
    done = cli(*arguments, cwd=folder)
    assert done.returncode in (0, 1, 2), done.stderr
    for text in (done.stdout, done.stderr):
        assert not HIDDEN.search(text), (arguments, HIDDEN.search(text))
    return done.stdout + done.stderr


def test_visible() -> None:
    assert visible("a\x1b[2J\n\u202e") == r"a\u001b[2J\u000a\u202e"
    assert visible_lines("a\tb\nc\U000e0001") == "a\tb\nc\\udb40\\udc01"
    text = json.dumps({"a": ESCAPES}, ensure_ascii=False)
    assert json.loads(visible_lines(text)) == {"a": ESCAPES}
    assert visible("naïve 模型 ✓ 🤗") == "naïve 模型 ✓ 🤗"


@pytest.mark.parametrize(
    "bad", [ESCAPES, "\x1b[1m\n\n✓ FITS", "[/bold] [red]:smile:"], ids=["escapes", "lines", "markup"]
)
def test_names_on_the_terminal(tmp_path: Path, bad: str) -> None:
    """In every argument, in keys and values of files of every kind, and in their paths."""
    name = f"m{bad}"
    path = model(tmp_path, name)
    gpu = ("--gpu", "rtx4090", "--seq-len", "512")
    out = shown(tmp_path, "estimate", str(path), *gpu, "-v")
    assert not any(line.strip() == "✓ FITS" for line in out.splitlines())
    assert json.loads(shown(tmp_path, "estimate", str(path), *gpu, "--json"))["model"].endswith(f"{name}/config.json")
    shown(tmp_path, "compare", str(path), "qwen2.5-0.5b", *gpu)
    shown(tmp_path, "suggest", str(path), *gpu, "--global-batch", "2")
    shown(tmp_path, "table", "--models", str(path), "--gpus", "rtx4090", "--seq-lens", "512", "--jobs", "1")
    for arguments in (
        ["estimate", name],
        ["estimate", "qwen2.5-0.5b", "--gpu", name],
        ["models", name],
        ["gpus", name],
    ):
        shown(tmp_path, *arguments, *([] if "--gpu" in arguments or arguments[0].endswith("s") else gpu))
    for option in ("--method", "--optimizer", "--lengths", "--image-size", "--by", "--job", "--lora-targets"):
        shown(tmp_path, "estimate", "qwen2.5-0.5b", *gpu, option, name)
    shown(tmp_path, "check", *gpu, "--", name, "--model", name)
    shown(tmp_path, name)
    quoted = json.dumps(name)
    lora = "finetuning_type: lora\nstage: sft\ncutoff_len: 512\n"
    for number, text in enumerate(
        (
            f"model_name_or_path: {json.dumps(str(path))}\n{lora}{quoted}: 1\n",
            f"model_name_or_path: {quoted}\n{lora}",
            f"model_name_or_path: Qwen/Qwen2.5-0.5B\n{lora}optim: {quoted}\n",
            f"model_name_or_path: Qwen/Qwen2.5-0.5B\n{lora}lora_target: {quoted}\nlora_rank: {quoted}\n",
        )
    ):
        file = tmp_path / f"{number}{bad.replace('/', '')}.yaml"
        file.write_text(text)
        shown(tmp_path, "check", file.name, *gpu)
        shown(tmp_path, "check", "--fix", file.name, *gpu)
    (tmp_path / "t.toml").write_text(f"[{quoted}]\nmodels = [{quoted}]\ngpus = [{quoted}]\n")
    shown(tmp_path, "table", "--config", "t.toml")
    (tmp_path / "job.json").write_text(json.dumps({name: 1}))
    shown(tmp_path, "estimate", "qwen2.5-0.5b", *gpu, "--job", "job.json")
    (tmp_path / "d.jsonl").write_text(json.dumps({name: name}))
    (tmp_path / "run.sh").write_text(f"swift sft --model Qwen/Qwen2.5-0.5B --max_length 512 --{name} {quoted}\n")
    shown(tmp_path, "check", "run.sh", *gpu, "--dataset", "d.jsonl")
    shown(tmp_path, "check", "run.sh", *gpu)


class Elements(HTMLParser):
    """The elements of a page, and the attributes that run code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.handlers: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names[tag] += 1
        self.handlers += [name for name, value in attributes if name.startswith("on") or "javascript:" in (value or "")]


@pytest.mark.full
def test_pages_have_no_elements_of_a_name(tmp_path: Path) -> None:
    """The same elements as with a plain name, in the page and in every answer that its script places."""
    pages = {}
    for name in ("plain", HTML):
        model(tmp_path, name)
        shown(tmp_path, "report", name, "--gpu", "rtx4090", "--seq-len", "512", "--out", "r.html")
        pages[name] = (tmp_path / "r.html").read_text()
    plain, hostile = (Elements(page) for page in pages.values())
    assert hostile.names == plain.names
    assert not hostile.handlers
    answers = []
    for page in pages.values():
        data = re.search(r'id="answers">(.*?)</script>', page, re.DOTALL)
        assert data is not None
        assert not set("<>&") & set(data[1])
        answers.append(json.loads(data[1])["answers"])
    assert answers[0].keys() == answers[1].keys()
    for key, answer in answers[1].items():
        for part, html in answer["parts"].items():
            elements = Elements(html)
            assert elements.names == Elements(answers[0][key]["parts"][part]).names
            assert not elements.handlers
    assert HTML in answers[1][key]["commands"]["vramplan"], "a text, which the script places as one"


def test_plots_have_no_elements_of_a_name(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for kind in ("svg", "html"):
        found = []
        for name in ("plain", HTML):
            if kind == "svg":
                model(tmp_path, name)
            done = cli("estimate", name, "--gpu", "rtx4090", "--seq-len", "512", "--plot", f"p.{kind}", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            found.append(Elements((tmp_path / f"p.{kind}").read_text()))
        assert not found[1].names.keys() - found[0].names.keys()
        assert found[1].names["img"] == 0
        assert not found[1].handlers


def test_tables_have_no_columns_of_a_name(tmp_path: Path) -> None:
    name = "a|b`c\n<script><!-- vramplan table: end t -->"
    path = model(tmp_path, name.replace("/", ""))
    asked = ("table", "--models", str(path), "--gpus", "rtx4090", "--seq-lens", "512", "--jobs", "1")
    text = cli(*asked, cwd=tmp_path).stdout
    lines = text.splitlines()
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines[:3]] == [3, 3, 3]
    assert "<" not in text.replace("&lt;", "")
    assert not re.search(r"(?<!\\)[`\[]", lines[2])
    page = Elements(cli(*asked, "--format", "html", cwd=tmp_path).stdout)
    assert set(page.names) == {"table", "thead", "tbody", "tr", "th", "td", "p"}
