"""The report: one file that stands alone, whose figures are the command line's."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import cli, cli_json
from vramplan import atomic_write
from vramplan.planner.report import Report, build
from vramplan.planner.search_result import Search
from vramplan.render.figures import gib, parts
from vramplan.render.report import page
from vramplan.render.verdict import need_of_capacity
from vramplan.render.web.bar import bar
from vramplan.render.web.labels import GAP, WIDTHS, Label, in_a_row, in_rows, outside
from vramplan.render.web.step_chart import HEIGHT, Scale, step_chart
from vramplan.render.web.step_profile import FIXED, _without_dips, phase_names, step_profile
from vramplan.units import GiB

MODEL = "qwen2.5-0.5b"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def built() -> Report:
    return build(MODEL, "rtx3060", global_batch=8, gpus=["rtx4090", "t4"])


def data_of(html: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="answers">(.*?)</script>', html, re.DOTALL)
    assert match is not None
    found: dict[str, Any] = json.loads(match[1])
    return found


def test_every_answer_is_the_one_that_suggest_gives(built: Report) -> None:
    data = data_of(page(built).decode())
    pairs = set()
    for name in ("rtx3060-12gb", "rtx4090", "t4"):
        search = vramplan.suggest(MODEL, name, 8)
        for plan in search.plans:
            pairs.add(f"{name} {plan.micro_batch_size}")
            need, capacity = need_of_capacity(plan.estimate.device_total_bytes, plan.estimate.capacity_bytes)
            head = data["answers"][f"{name} {plan.micro_batch_size}"]["parts"]["head"]
            assert f">{need} GiB</b> of {capacity} on " in head
            assert f">{gib(plan.estimate.device_total_bytes)}</button>" in data["matrix"]
    assert pairs == data["answers"].keys()
    assert len(pairs) > 6
    assert data["start"] == f"rtx3060-12gb {built.micro_batch_size}"
    assert "--loss liger" not in data["answers"]["t4 1"]["commands"]["vramplan"]
    for key in (data["start"], "rtx4090 1"):  # the recommended plan, and another
        answer = data["answers"][key]
        words = answer["commands"]["vramplan"].replace("\\\n", "").split()[1:]
        shown = cli(*words, "--html").stdout if words[0] == "estimate" else cli(*words, "--html", "answer").stdout
        assert re.search(r'<p class="need">.*?</p>', answer["parts"]["head"])[0] in shown  # type: ignore[index]
    assert "per_device_train_batch_size: " in data["answers"][data["start"]]["commands"]["llamafactory"]


def test_the_parts_of_the_bar_add_up_at_every_width(built: Report) -> None:
    for search in (built.search, built.on("rtx4090")):
        assert isinstance(search, Search)
        for plan in search.plans:
            sizes, need = parts(plan.estimate)
            html = bar(plan.estimate)
            for width in WIDTHS:
                inside = [
                    size for wide, size in re.findall(r'"from-(\d+)">[^<]* ([\d.]+)<', html) if int(wide) <= width
                ]
                below = re.search(rf'<div class="labels at-{width}".*?</div>', html)
                outside = re.findall(r"[a-zA-Z] ([\d.]+)<", below[0]) if below else []
                shown = [*inside, *outside]
                assert sum(round(float(size) * 100) for size in shown) == need == sum(size for _, size in sizes)


def label(start: float, share: float, name: str = "cached by PyTorch", group: str = "overhead") -> Label:
    return Label((name,), 123, ("cached",), group, start, share, share)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("seed", range(20))
def test_labels_meet_neither_each_other_nor_the_edge(width: int, seed: int) -> None:
    """Bars of random parts: texts do not overlap, and stay inside the bar."""
    choose = random.Random(seed)
    cuts = sorted(0.01 + 0.99 * choose.random() ** choose.choice((1, 3)) for _ in range(choose.randint(1, 9)))
    named = [label(low, high - low, "x" * choose.randint(6, 20)) for low, high in pairwise([0.0, 0.01, *cuts])]
    below = outside(named, width)
    spots = in_a_row(below, width) or in_rows(named, width)
    for number, spot in enumerate(spots):
        assert spot.left >= 0
        assert spot.right - GAP <= width + 0.01 or spot.label.pixels - GAP > width
        for other in spots[:number]:
            assert spot.row != other.row or spot.left >= other.right - 0.01 or other.left >= spot.right - 0.01


def test_slivers_share_a_label_and_labels_are_pushed_apart_evenly() -> None:
    parts = [label(0.5, 0.001, "gradients"), label(0.501, 0.02, "activations"), label(0.521, 0.001, "temporaries")]
    (joined,) = outside(parts, 1000)
    assert joined.text == "gradients, activations, temporaries 3.69"
    first, second = in_a_row([label(0.5, 0.01), label(0.51, 0.01)], 1000)
    assert second.left == first.right
    assert first.left + second.left == pytest.approx(500 + 5 + 510 + 5 - 15)
    assert not in_a_row([label(0.1 + i / 100, 0.01) for i in range(6)], 1000)  # too far from their parts


@pytest.mark.parametrize(
    "settings", [{}, {"gradient_accumulation_steps": 4}, {"method": "full", "num_gpus": 4, "strategy": "fsdp"}]
)
def test_the_profile_of_a_step_reaches_the_peak_and_its_fixed_part_stays(settings: dict[str, Any]) -> None:
    estimate = vramplan.estimate(MODEL, "h100-sxm", **settings)
    profile = step_profile(estimate)
    assert profile is not None
    assert estimate.timeline is not None
    last = [mark.first_event for mark in estimate.timeline.marks if mark.phase == "optimizer"][-2]
    start = next(mark.first_event for mark in estimate.timeline.marks if mark.first_event > last)
    assert max(profile.totals) == max(estimate.timeline.live_bytes()[start:])
    assert all(min(profile.levels[name]) == size for name, size in profile.fixed.items())
    assert {*profile.fixed} <= {*FIXED}
    names = phase_names(profile, estimate.gradient_accumulation_steps)
    steps = settings.get("gradient_accumulation_steps", 1)
    first = ["forward 1 of 4", "backward", "forward 4 of 4"] if steps == 4 else ["forward"]
    assert names == [*first, "backward", "optimizer"]
    moving = [name for name, sizes in profile.levels.items() if {*sizes} != {profile.fixed.get(name, 0)}]
    assert step_chart(estimate, profile).count("<path") == len(moving)


def test_narrow_dips_are_not_shown_and_peaks_are_no_wider() -> None:
    comb = [5, 1] * 20
    assert [comb[event] for event in _without_dips(range(40), comb)] == [5] * 39 + [1]
    sizes = [0] * 20 + [9] + [0] * 20 + [7] * 20
    assert [sizes[event] for event in _without_dips(range(61), sizes)] == sizes
    ramp = list(range(30))
    assert _without_dips(range(30), ramp) == ramp


def test_a_scale_begins_at_the_top() -> None:
    scale = Scale(10 * GiB, 20 * GiB)
    assert [scale.y(size * GiB) for size in (20, 15, 10)] == [0, HEIGHT / 2, HEIGHT]


class Balanced(HTMLParser):
    """Fails where elements do not close in the order in which they open."""

    VOID = frozenset(("meta", "br", "input", "link"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    job = (MODEL, "--gpu", "rtx3060", "--micro-batch", "2", "--loss", "liger")
    shown = cli_json("report", *job, "--accumulation", "4", "--gpus", "rtx4090", "--out", str(out))
    alone = cli_json("estimate", *job, "--accumulation", "4")
    assert shown == {key: value for key, value in alone.items() if key not in ("host", "generation")}
    text = out.read_text()
    assert len(text) < 500_000
    assert not re.search(r"""(src|href|url\()\s*=?\s*["']?(https?:)?//""", text)
    for part in ("prefers-color-scheme", "@media print", "Content-Security-Policy", "--loss liger"):
        assert part in text, part
    assert not re.search("@[A-Z]+@", text)
    for html in (text, *(part for answer in data_of(text)["answers"].values() for part in answer["parts"].values())):
        parser = Balanced()
        parser.feed(html)
        parser.close()
        assert not parser.open


def test_texts_from_outside_stay_texts() -> None:
    spec = vramplan.load_model(MODEL).model_copy(update={"name": "</script><img src=x onerror=alert(1)>"})
    html = page(build(spec, "rtx3060", global_batch=2, gpus=[])).decode()
    assert "<img" not in html
    assert "</script><" not in html.replace("</script>\n<", "")


@pytest.mark.skipif(BROWSER is None, reason="no browser on this system")
def test_a_browser_shows_the_answer_that_the_address_names(built: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(page(built))
    for address, title in (
        ("", "RTX 3060 12GB"),
        ("#gpu=rtx4090&micro=2", "RTX 4090"),
        ("#gpu=none&micro=x", "RTX 3060"),
    ):
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", path.as_uri() + address]
        dom = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout  # type: ignore[arg-type]
        assert f"on {title}" in dom.partition('id="head"')[2].partition("</p>")[0]
        assert 'aria-pressed="true"' in dom or not address.startswith("#gpu=rtx")


@pytest.mark.skipif(BROWSER is None, reason="no browser on this system")
def test_a_print_is_one_sheet_of_a4(built: Report, tmp_path: Path) -> None:
    path, printed = tmp_path / "report.html", tmp_path / "report.pdf"
    path.write_bytes(page(built))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--print-to-pdf={printed}", path.as_uri()]
    subprocess.run(command, capture_output=True, check=False, timeout=60)  # type: ignore[arg-type]
    pages = re.findall(rb"/Type\s*/Page\b.*?/MediaBox\s*\[0 0 (\d+)\S* (\d+)", printed.read_bytes(), re.DOTALL)
    assert pages == [(b"594", b"841")]


def test_nothing_fits_and_a_gpu_that_cannot_run_the_job() -> None:
    built = build(
        "qwen2.5-7b", "rtx3050-8gb", global_batch=4, gpus=["t4"], method="full", dtype="bf16", autocast="bf16"
    )
    data = data_of(page(built).decode())
    assert "Does not fit" in data["answers"][data["start"]]["parts"]["head"]
    assert data["answers"][data["start"]]["commands"]["vramplan"].startswith("vramplan suggest Qwen/Qwen2.5-7B ")
    assert "cannot run it" in data["matrix"]


def test_an_interruption_keeps_the_page_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "report.html"
    out.write_text("old")

    def stopped(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        atomic_write.write(out, b"new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("report.html", "old")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "/nowhere/r.html"], "cannot be written"),
        (["--out", "r.pdf"], "must end in .html"),
        (["--out", "r.html", "--gpus", "h10"], "did you mean h100"),
        (["--out", "r.html", "--micro-batch", "3", "--global-batch", "16"], "does not divide the global batch 16"),
        (["--out", "r.html", "--micro-batch", "2", "--accumulation", "2", "--global-batch", "16"], "not the product"),
        (["--out", "r.html", "--method", "full", "--lora-rank", "8"], "no meaning with --method full"),
        ([], "Missing option '--out'"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = cli("report", MODEL, "--gpu", "h100", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
