"""Pictures of a step, and the snapshot that PyTorch's memory viewer opens."""

from __future__ import annotations

import io
import pickle
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import cli
from vramplan.memory.estimate import Estimate
from vramplan.render import memory_snapshot, plot

EMPTIED = {"strategy": "zero2", "num_gpus": 2, "method": "full"}
"""DeepSpeed empties the cache."""


@pytest.fixture(
    scope="module",
    params=[(False, {}), (True, {}), (False, EMPTIED), (True, EMPTIED)],
    ids=["segments", "expandable", "emptied", "emptied-expandable"],
)
def one(request: pytest.FixtureRequest) -> Estimate:
    expands, settings = request.param
    return vramplan.estimate("qwen2.5-0.5b", "rtx4090", micro_batch_size=2, expandable_segments=expands, **settings)


def written(one: Estimate, folder: Path) -> Any:
    memory_snapshot.write(one, folder / "step.pickle")
    return pickle.loads((folder / "step.pickle").read_bytes())


def test_snapshot_adds_up(one: Estimate, tmp_path: Path) -> None:
    """Every free has its allocation, blocks tile their segments, sums are the estimate's."""
    data = written(one, tmp_path)
    (trace,) = data["device_traces"]
    live: dict[int, int] = {}
    segments = reserved = 0
    for entry in trace:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_requested":
            assert live.pop(entry["addr"]) == entry["size"]
        elif entry["action"] in ("segment_alloc", "segment_map"):
            segments += entry["size"]
        elif entry["action"] in ("segment_free", "segment_unmap"):
            segments -= entry["size"]
        reserved = max(reserved, segments)
    assert reserved == one.peak_reserved_bytes
    blocks = 0
    for segment in data["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
            blocks += block["state"] == "active_allocated"
        assert at == segment["address"] + segment["total_size"]
    assert blocks == len(live)
    assert sum(segment["total_size"] for segment in data["segments"]) == segments


def test_pytorchs_own_viewer_opens_it(one: Estimate, tmp_path: Path) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz", reason="the viewer is torch's")
    data = written(one, tmp_path)
    with redirect_stdout(io.StringIO()):
        assert viz.segsum(data)
        assert viz.trace(data)
    for page in (viz.trace_plot(data), viz.segment_plot(data)):
        assert page.startswith("<!DOCTYPE html>") or "<html" in page
    for flat in (viz.memory, viz.segments):
        assert flat(data, format_flamegraph=lambda text: text)


KINDS = {".svg": b"<?xml", ".png": b"\x89PNG", ".html": b"<!doctype html>"}


@pytest.mark.parametrize("kind", KINDS)
def test_plot(one: Estimate, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra vramplan[plot]")
    path = tmp_path / f"step{kind}"
    plot.write(one, path)
    content = path.read_bytes()
    assert content.startswith(KINDS[kind])
    plot.write(one, path)
    assert path.read_bytes() == content
    assert [other.name for other in tmp_path.iterdir()] == [path.name]
    if kind != ".png":
        text = content.decode()
        for said in ("peak ", "capacity of the GPU", "backward", "activations", "logits"):
            assert said in text, said
    if kind == ".html":
        assert not re.search(r'(src|href)="http', text)


def test_levels_are_those_of_the_timeline(one: Estimate) -> None:
    assert one.timeline is not None
    totals = one.timeline.live_bytes()
    shown, found = plot.levels(one.timeline, columns=200)
    assert [sum(sizes[i] for sizes in found.values()) for i in range(len(shown))] == [totals[i] for i in shown]
    assert max(totals[i] for i in shown) == max(totals)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra vramplan[plot]")
    done = cli("estimate", "qwen2.5-0.5b", "--gpu", "h100", "--plot", str(tmp_path / "no" / "step.svg"))
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert done.stderr.count("\n") == 1
