"""Answers on terminals: the same facts at every width, without colour and without Unicode, and sums that add up."""

from __future__ import annotations

import io
import re
from functools import cache

import pytest
from rich.console import Console

import vramplan
from tests.helpers import ROOT, card_of, cli, cli_process
from vramplan.memory.estimate import Estimate
from vramplan.planner.images import image_size_table
from vramplan.planner.search_result import Run
from vramplan.render import catalog, check, estimate, figures, images, suggest
from vramplan.render.terminal import Answer, _AsciiConsole

WIDTHS = (40, 60, 80, 120)
BOX_LINES = 10
QWEN, VISION = "Qwen/Qwen2.5-7B-Instruct", "qwen2.5-vl-7b-instruct"
CONFIGS = ROOT / "tests" / "configs"
ANSWERS = {
    "suggest": lambda: suggest.answer(vramplan.suggest(QWEN, "rtx4090", 16), Run()),
    "suggest a whole run": lambda: suggest.answer(
        vramplan.suggest("qwen2.5-0.5b", "rtx4090", 1024, samples=50_000, base_lr=1e-4, base_batch=64),
        Run(50_000, 1.0, 1e-4, 64),
        verbose=True,
    ),
    "suggest, nothing fits": lambda: suggest.answer(vramplan.suggest(QWEN, "rtx4090", 16, method="full"), Run()),
    "suggest, several GPUs": lambda: suggest.answer(
        vramplan.suggest("llama-3.1-8b", "a100-80gb", 128, method="full", num_gpus=8, sequence_length=8192), Run()
    ),
    "estimate": lambda: estimate.answer(layers_on_two_gpus(), card_of("a100-80gb"), explain=True),
    "estimate, only without margin": lambda: estimate.answer(
        vramplan.estimate(QWEN, "rtx4090", micro_batch_size=2), card_of("rtx4090")
    ),
    "check": lambda: check.answer(vramplan.check(CONFIGS / "trl" / "eight.sh", "rtx3060"), verbose=True),
    "check, another batch": lambda: check.answer(vramplan.check(WIDE, "rtx4090")),
    "images": lambda: images.answer(image_size_table(VISION, "rtx4090"), card_of("rtx4090")),
    "gpus": lambda: catalog.gpus([card_of("rtx4090"), card_of("mi300x")]),
}
WIDE = ["swift", "sft", "--model", "Qwen2.5-7B-Instruct", "--tuner_type", "lora", "--torch_dtype", "bfloat16"]
WIDE += ["--max_length", "512", "--per_device_train_batch_size", "16"]


@cache
def layers_on_two_gpus() -> Estimate:
    return vramplan.estimate("llama-3.1-70b", "a100-80gb", num_gpus=2, strategy="device_map")


@cache
def answer_to(question: str) -> Answer:
    return ANSWERS[question]()


def printed(question: str, width: int, ascii_only: bool = False) -> list[str]:
    file = io.StringIO()
    kind = _AsciiConsole if ascii_only else Console
    kind(file=file, width=width, highlight=False, color_system=None, legacy_windows=False).print(answer_to(question))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def numbers(lines: list[str]) -> set[str]:
    """Figures of an answer; a wrapped line breaks none."""
    return set(re.findall(r"\d[\d,.]*\d|\d", " ".join(line.strip("│| ") for line in lines)))


@pytest.mark.parametrize("ascii_only", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("question", ANSWERS)
def test_no_line_is_longer_than_the_terminal(question: str, width: int, ascii_only: bool) -> None:
    lines = printed(question, width, ascii_only)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    assert "?" not in text
    assert text.isascii() or not ascii_only


@pytest.mark.parametrize("question", ANSWERS)
def test_the_same_facts_at_every_width(question: str) -> None:
    known = numbers(printed(question, 80))
    for width in WIDTHS:
        assert numbers(printed(question, width)) == known, width
        assert numbers(printed(question, width, ascii_only=True)) == known, width


@pytest.mark.parametrize("question", [name for name in ANSWERS if name != "gpus"])
def test_the_verdict_comes_first_in_a_box_of_ten_lines(question: str) -> None:
    lines = printed(question, 80)
    start, end = (next(number for number, line in enumerate(lines) if line.startswith(corner)) for corner in "╭╰")
    assert end - start < BOX_LINES
    assert re.search(r"FITS|DOES NOT FIT", lines[start + 1])
    assert re.search(r"\d+\.\d GiB of \d+\.\d", lines[start + 1])
    if question.startswith("check"):
        assert lines[0].startswith("Read as ")
        most = 12 + any("are counted" in line for line in lines)  # which samples fit may turn the verdict
        assert len(lines) <= most or question == "check", "with -v there is more"
    else:
        assert lines[end + 1].startswith("Assumes ")


@pytest.mark.parametrize("question", ANSWERS)
def test_parts_add_up_to_the_need_by_hand(question: str) -> None:
    lines = printed(question, 80)
    if not any(line.startswith("Where it goes") for line in lines):
        return
    start = next(number for number, line in enumerate(lines) if line.startswith("Where it goes")) + 1
    end = next(number for number, line in enumerate(lines) if figures.NEED in line)
    sizes = [round(100 * float(re.search(r"  +(\d+\.\d\d)\b", line)[1])) for line in lines[start : end + 1]]  # type: ignore[index]
    assert sum(sizes[:-1]) == sizes[-1]
    assert sizes[:-1] == sorted(sizes[:-1], reverse=True)
    assert min(sizes) > 0


def test_parts_add_up_whatever_the_sizes_are() -> None:
    for micro_batch_size in range(1, 6):
        for model in ("qwen2.5-0.5b", "gpt2", "pythia-1b"):
            found = vramplan.estimate(model, "h100", micro_batch_size=micro_batch_size, sequence_length=999)
            parts, need = figures.parts(found)
            assert sum(size for _, size in parts) == need
            assert 0 <= need / 100 - found.device_total_bytes / (1 << 30) < 0.0100001
            totals = found.by_category()
            for name, size in parts:
                assert abs(size / 100 - totals[name] / (1 << 30)) < (0.06 if name == figures.CACHED else 0.0051)


def test_what_does_not_fit_has_a_need_too() -> None:
    """Every figure comes from a replay: none is a bound."""
    found = vramplan.suggest(QWEN, "rtx4090", 16, method="full")
    text = " ".join(printed("suggest, nothing fits", 80))
    assert "at least" not in text
    for change in found.advice:
        assert figures.gib(change.device_total_bytes) in text
    rejected = vramplan.suggest("qwen2.5-0.5b", "rtx4090", 1024).rejected[0]
    assert rejected.device_total_bytes is not None
    assert f"{figures.gib(rejected.device_total_bytes)}  does not fit" in " ".join(printed("suggest a whole run", 80))


def test_headroom_is_what_the_printed_sizes_leave() -> None:
    text = "\n".join(printed("suggest", 80))
    need, capacity, headroom = re.search(r"(\S+) GiB of (\S+)   headroom (\S+),", text).groups()  # type: ignore[union-attr]
    assert float(headroom) == pytest.approx(float(capacity) - float(need))


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LANG": "C", "LC_ALL": ""}, {"LC_ALL": "C"}],
    ids=["encoding", "LANG", "LC_ALL"],
)
def test_a_terminal_without_unicode(environment: dict[str, str]) -> None:
    text = cli_process("estimate", "qwen2.5-0.5b", "--gpu", "h100", **environment).stdout
    assert text.isascii()
    assert text.startswith("+- Qwen2.5-0.5B on H100 SXM ---")
    assert "| FITS   " in text
    assert "##" in text
    assert "x" in text
    assert "?" not in text


def test_colour_is_the_terminals_own_and_says_nothing_alone() -> None:
    question = ("suggest", "qwen2.5-0.5b", "--gpu", "h100", "--global-batch", "8")
    coloured = cli(*question, FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="").stdout
    plain = cli(*question, FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="1").stdout
    codes = set(re.findall(r"\x1b\[([\d;]+)m", coloured))
    assert codes
    assert not [code for code in codes if "38;" in code or "48;" in code], "of the 16 colours alone"
    strip = re.compile(r"\x1b\[[\d;]*m")
    assert strip.sub("", coloured) == strip.sub("", plain) == cli(*question).stdout


def test_what_fits_has_no_negative_room() -> None:
    """The capacity is rounded down and the need up; a need that is exactly the capacity still leaves nothing over."""
    exactly = 117 * (1 << 30) // 10 + 1
    assert figures.room_gib(exactly, exactly) == "0.0"
    assert figures.room_gib(exactly, exactly + 1).startswith("-")
