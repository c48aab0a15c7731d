"""Tables: cells are what `suggest` and `estimate` say, files are kept, mistakes are one line."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import ROOT, cli, cli_process
from vramplan.analytic.job_steps import VERSIONS
from vramplan.cli.typer_app import app_of
from vramplan.errors import ConfigError, VramplanError
from vramplan.inputs.catalog import find_model
from vramplan.memory.replay import replay
from vramplan.planner.monotone_search import largest_batch, largest_by_tensors
from vramplan.planner.table import Table, TableRequest, embedded, fill, table_request
from vramplan.planner.table.config import read
from vramplan.render import table_file
from vramplan.render.table import grid
from vramplan.render.terminal import gib
from vramplan.units import MiB

GPUS = ("t4", "rtx3060-12gb", "rtx4090", "a100-40gb", "h100")
"""Three kinds of card (without bf16, with, with Hopper's workspace), from 12 to 80 GiB."""


filled = vramplan.table


def each(one: Table) -> list[tuple[dict[str, Any], Any]]:
    """(the job of a cell, the cell)."""
    said = []
    for place, row in one.rows.items():
        for cell in row.cells:
            job = {
                "model": one.sheet.models[place.model],
                "gpu": cell.card,
                "method": one.sheet.methods[place.method],
                "sequence_length": one.sheet.lengths[place.length],
            }
            said.append((job, cell))
    return said


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("models", "methods", "length", "job"),
    [
        (["qwen2.5-0.5b"], ["full", "qlora"], 4096, {}),
        (["gemma-2-2b"], ["lora"], 5000, {"loss": "liger"}),
        (["smolvlm-256m-instruct"], ["lora"], 4096, {"checkpointing": "none"}),
        (["qwen2.5-1.5b"], ["full"], 2048, {"num_gpus": 2, "strategy": "zero2"}),
        (["smollm2-135m"], ["dora"], 8192, {"expandable_segments": True}),
    ],
)
def test_cells_are_what_suggest_says(models: list[str], methods: list[str], length: int, job: dict[str, Any]) -> None:
    one = filled(models, GPUS, methods=methods, seq_lens=[length], **job)
    seen = set()
    for asked, cell in each(one):
        try:
            found: Any = vramplan.suggest(**asked, global_batch=job.get("num_gpus", 1), advice=False, **job)
            expected: Any = (found.max_micro_batch_size, "")
        except VramplanError as error:
            expected = (None, str(error))
        assert (cell.value, cell.refused) == expected, asked
        seen.add(cell.value)
    assert len(seen) > 2


@pytest.mark.parametrize(
    ("model", "gpu", "job"),
    [
        ("olmoe-1b-7b-0924", "t4", {}),
        ("qwen2.5-0.5b", "h100", {"lora_targets": "none_of_them"}),
        ("olmoe-1b-7b-0924", "h100", {"num_gpus": 2, "strategy": "fsdp"}),
    ],
)
def test_what_suggest_refuses_is_refused(model: str, gpu: str, job: dict[str, Any]) -> None:
    """What only the simulated step shows: routers, names of layers."""
    with pytest.raises(VramplanError) as refusal:
        vramplan.suggest(model, gpu, 2, advice=False, **job)
    with pytest.raises(ConfigError, match="every cell of the table is empty: " + re.escape(str(refusal.value))):
        filled([model], [gpu], **job)


def test_speed_is_what_the_largest_batch_takes() -> None:
    one = filled(["qwen2.5-0.5b"], ["t4", "h100"], show="speed", methods=["full"])
    assert "estimated, not measured; reading data" in one.note
    _speeds_are_the_estimates(one)
    t4, h100 = (cell.value or 0 for _, cell in each(one))
    assert h100 > 5 * t4 > 0


@pytest.mark.parametrize("job", [{}, {"strategy": "zero3"}, {"strategy": "zero2", "offload": "optimizer"}])
def test_speed_counts_communication_and_the_host(job: dict[str, Any]) -> None:
    job = {"num_gpus": 4, **job}
    table = filled(["qwen2.5-0.5b"], ["rtx4090", "h100"], show="speed", methods=["full"], **job)
    _speeds_are_the_estimates(table, **job)


def test_a_speed_that_is_not_known_says_why() -> None:
    with pytest.raises(ConfigError, match="a machine holds 8 such GPUs, not 16"):
        filled(["qwen2.5-0.5b"], ["rtx4090"], show="speed", num_gpus=16)


def _speeds_are_the_estimates(table: Table, **job: Any) -> None:
    for asked, cell in each(table):
        asked |= job
        global_batch = job.get("num_gpus", 1)
        largest = vramplan.suggest(**asked, global_batch=global_batch, advice=False).max_micro_batch_size
        time = vramplan.estimate(**asked, micro_batch_size=largest).step_time
        assert time is not None
        assert (time.communication_seconds > 0) == (global_batch > 1)
        assert cell.value == round(largest * table.sheet.lengths[0] / time.seconds)


@pytest.mark.parametrize("micro", [1, 8])
def test_memory_is_what_estimate_says(micro: int) -> None:
    one = filled(["qwen2.5-0.5b"], GPUS, show="memory", micro_batch=micro)
    found = [vramplan.estimate(**asked, micro_batch_size=micro) for asked, _ in each(one)]
    assert [(cell.value, cell.fits) for _, cell in each(one)] == [(e.device_total_bytes, e.fits) for e in found]
    smallest = filled(["qwen2.5-0.5b"], GPUS[::-1], show="card", micro_batch=micro)
    ((_, chosen),) = each(smallest)
    fitting = [(e.capacity_bytes, e.card) for e in found if e.fits]
    assert chosen.card == min(fitting)[1]


def test_a_replay_holds_up_to_what_was_refused() -> None:
    """Between the reserved peak and the least total refused, every capacity gives the same."""
    events, sizes = [0, ~0, 1, 2, ~1, 3], [60 * MiB, 80 * MiB, 30 * MiB, 70 * MiB]
    one = replay(events, None, sizes, 120 * MiB)
    assert one.num_retries
    for capacity in (
        one.peak_reserved_bytes,
        (one.peak_reserved_bytes + one.refused_bytes) // 2,
        one.refused_bytes - 1,
    ):
        again = replay(events, None, sizes, capacity)
        assert (again.peak_reserved_bytes, again.num_retries) == (one.peak_reserved_bytes, one.num_retries)
    assert replay(events, None, sizes, one.refused_bytes).num_retries < one.num_retries
    assert replay(events, None, sizes, one.peak_reserved_bytes - 1) != one


@pytest.mark.parametrize("kink", [1, 5, 40])
@pytest.mark.parametrize("room", [30, 300, 3000])
def test_the_search_finds_the_largest(kink: int, room: int) -> None:
    def least(micro: int) -> int:
        return 7 + 3 * micro + 11 * max(0, micro - kink)

    top = largest_by_tensors(1, None, least, room)
    assert least(top) <= room < least(top + 1)
    for answer in {1, top // 3 or 1, top}:
        assert largest_batch(1, top, lambda micro: micro <= answer) == answer  # noqa: B023


@pytest.fixture
def keep(tmp_path: Path) -> Path:
    """A configuration and a file with its markers."""
    (tmp_path / "vramplan-table.toml").write_text(
        '[one]\nmodels = ["smollm2-135m"]\ngpus = ["rtx4090", "t4"]\n\n'
        '[two]\nmodels = [\n  "smollm2-135m",\n]\ngpus = ["t4"]\n'
        'show = "memory"\nmicro-batch = 2\njob = { loss = "liger" }\n'
    )
    text = (
        "# Doc\r\n\r\n<!-- vramplan table: begin one -->\r\nold\r\n<!-- vramplan table: end one -->\r\nend, no newline"
    )
    (tmp_path / "doc.md").write_bytes(text.encode())
    return tmp_path


def run(folder: Path, *arguments: str) -> Any:
    return cli("table", *arguments, *(() if "--jobs" in arguments else ("--jobs", "1")), cwd=folder)


def test_a_file_is_checked_and_written(keep: Path) -> None:
    doc = keep / "doc.md"
    before = doc.read_bytes()
    stale = run(keep, "--check", "doc.md")
    assert (stale.returncode, doc.read_bytes()) == (1, before)
    assert stale.stdout.startswith("--- doc.md\n+++ doc.md (now)\n@@")
    assert "-old" in stale.stdout
    assert run(keep, "--write", "doc.md").returncode == 0
    after = doc.read_bytes()
    assert after.startswith(b"# Doc\r\n\r\n<!-- vramplan table: begin one -->\r\n| model | RTX 4090 | T4 |\r\n")
    assert after.endswith(b".\r\n<!-- vramplan table: end one -->\r\nend, no newline")
    assert f"vramplan {vramplan.__version__}, analytic estimator (torch".encode() in after
    fresh = run(keep, "--check", "doc.md")
    assert (fresh.returncode, fresh.stdout) == (0, "")
    assert run(keep, "--write", "doc.md").returncode == 0
    assert doc.read_bytes() == after
    flags = run(keep, "--models", "smollm2-135m", "--gpus", "rtx4090,t4", "--name", "one", "--check", "doc.md")
    assert flags.returncode == 0, flags.stdout


def test_what_was_edited_meanwhile_stays(keep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is read again when the table is there."""
    monkeypatch.chdir(keep)
    doc = keep / "doc.md"
    table_texts = table_file.table_texts

    def slowly(*arguments: Any, **options: Any) -> dict[str, str]:
        doc.write_text("more\n" + doc.read_text(), encoding="utf-8")
        return table_texts(*arguments, **options)

    monkeypatch.setattr(table_file, "table_texts", slowly)
    assert app_of(["table"])(["table", "--write", "doc.md", "--jobs", "1"], standalone_mode=False) == 0
    assert doc.read_text(encoding="utf-8").startswith("more\n")
    monkeypatch.undo()
    assert run(keep, "--check", "doc.md").returncode == 0


def test_several_tables_in_one_text(keep: Path) -> None:
    found = run(keep, "--format", "json")
    assert (found.returncode, set(json.loads(found.stdout))) == (0, {"one", "two"})
    refused = run(keep, "--format", "csv")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--format csv holds one table: give --name, one of one, two" in refused.stderr


def test_a_table_of_the_job_and_a_folder_beside_the_file(keep: Path) -> None:
    """Lines of keys in a table of their own; a model's folder is looked for where the configuration lies."""
    below = keep / "docs"
    (below / "my model").mkdir(parents=True)
    spec = find_model("HuggingFaceTB/SmolLM2-135M")
    assert spec is not None
    (below / "my model/config.json").write_text(json.dumps({**spec.config, "model_type": spec.model_type}))
    config = below / "t.toml"
    config.write_text(
        '[one]\nmodels = ["./my model"]\ngpus = ["t4"]\n\n[one.job]\noptimizer = "sgd"\nlosss = "liger"\n'
    )
    wrong = run(keep, "--config", "docs/t.toml")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("vramplan: docs/t.toml:7: unknown setting of the job")
    config.write_text(config.read_text().replace("losss", "loss"))
    assert run(keep, "--config", "docs/t.toml").returncode == 0
    config.write_text(config.read_text().replace('"sgd"', '"sgdd"'))
    assert run(keep, "--config", "docs/t.toml").stderr.startswith(
        "vramplan: docs/t.toml: one: every cell of the table is empty"
    )


def test_a_byte_order_mark_before_the_first_marker(keep: Path) -> None:
    doc = keep / "doc.md"
    begin = doc.read_text(encoding="utf-8").index("<!-- vramplan table: begin")
    doc.write_text("\ufeff" + doc.read_text(encoding="utf-8")[begin:], encoding="utf-8")
    assert run(keep, "--write", "doc.md").returncode == 0
    assert doc.read_text(encoding="utf-8").startswith("\ufeff<!-- vramplan table: begin")


def test_closed_descriptors_are_no_defect(keep: Path) -> None:
    for closed in (">&-", "2>&-"):
        done = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m vramplan gpus {closed}"], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0
        assert "Traceback" not in done.stdout + done.stderr


def test_an_interrupted_write_keeps_the_old_file(keep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    doc = keep / "doc.md"
    before = doc.read_bytes()
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embedded.put(doc, ["new"], embedded.read(doc))
    assert doc.read_bytes() == before
    assert sorted(path.name for path in keep.iterdir()) == ["doc.md", "vramplan-table.toml"]


MARKED = "<!-- vramplan table: {} one -->"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "doc.md: no markers; put <!-- vramplan table: begin NAME -->"),
        (MARKED.format("begin"), "doc.md:1: table one has no end"),
        (MARKED.format("end"), "doc.md:1: the end of table one has no beginning"),
        (
            "\n".join([MARKED.format("begin"), MARKED.format("end")] * 2),
            "doc.md:3: table one stands twice, first in line 1",
        ),
        (
            "\n".join([MARKED.format("begin"), MARKED.format("begin")]),
            "doc.md:2: table one begins before one of line 1",
        ),
        (
            (MARKED.format("begin") + "\n" + MARKED.format("end")).replace("one", "onne"),
            "doc.md:1, 'onne'; did you mean one",
        ),
    ],
)
def test_markers_that_are_wrong(keep: Path, text: str, said: str) -> None:
    (keep / "doc.md").write_text(text)
    done = run(keep, "--write", "doc.md")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr
    assert (keep / "doc.md").read_text() == text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"rtx4090"', '"rtx4O90"', "toml:3: unknown GPU 'rtx4O90'; did you mean rtx4090"),
        ('  "smollm2-135m"', '  "nope-*"', "toml:7: unknown models 'nope-*'"),
        ("show =", "sow =", "toml:10: unknown setting 'sow'; did you mean show"),
        ('"memory"', '"memry"', "toml:10: unknown show 'memry'; did you mean memory"),
        ("loss", "los", "toml:12: unknown setting of the job 'los'; did you mean loss"),
        ('["rtx4090", "t4"]', '"t4"', "toml:3: gpus: expected a list of names"),
        ('gpus = ["t4"]', "", "toml:5: gpus is missing"),
        ("micro-batch = 2", "micro-batch = '2'", "toml:11: micro-batch: expected a number"),
        ("[two]", "[two", "broken TOML"),
    ],
)
def test_a_configuration_that_is_wrong(keep: Path, old: str, new: str, said: str) -> None:
    path = keep / "vramplan-table.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError) as error:
        read(path)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--models", "zzz*", "--gpus", "t4"], "unknown models 'zzz*'"),
        (["--models", "phi-4", "--gpus", "rtx99*"], "unknown GPUs 'rtx99*'"),
        (["--models", "phi-4"], "--models and --gpus go together"),
        (["--models", "phi-4", "--gpus", "t4", "--methods", "lorra"], "did you mean lora"),
        (["--models", "phi-4", "--gpus", "t4", "--seq-lens", "2x"], "--seq-lens 2x: expected whole numbers"),
        (["--models", "phi-4", "--gpus", "t4", "--seq-lens", "0"], "--seq-lens 0: expected whole numbers"),
        (["--models", "phi-4", "--gpus", "t4", "--show", "batch"], "known: max-batch"),
        (["--models", "phi-4", "--gpus", "t4", "--micro-batch", "2"], "it goes with memory and card"),
        (["--models", "phi-4", "--gpus", "t4", "--optimizer", "adamm"], "did you mean adamw"),
        (["--models", "phi-4", "--gpus", "t4", "--dtype", "bf16"], "every cell of the table is empty"),
        (["--models", "phi-4", "--gpus", "t4", "--jobs", "0"], "--jobs 0"),
        (["--show", "card"], "--show beside"),
        (["--name", "three"], "known: one, two"),
        (["--check", "none.md"], "none.md: cannot be read"),
        (["--check", "doc.md", "--write", "doc.md"], "give one"),
        (["--name", "two", "--write", "doc.md"], "doc.md: no markers of table two"),
    ],
)
def test_bad_input_is_one_line(keep: Path, arguments: list[str], said: str) -> None:
    done = run(keep, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert said in done.stderr


def test_a_read_only_file_is_refused(keep: Path) -> None:
    (keep / "doc.md").chmod(0o444)
    done = run(keep, "--write", "doc.md")
    assert done.returncode == 2
    assert done.stderr == "vramplan: doc.md: is read-only\n"


def test_formats_say_the_same(keep: Path) -> None:
    asked = ["--models", "smollm2-1*m", "--gpus", "rtx4090,t4", "--methods", "lora,full", "--lora-rank", "4"]
    asked += ["--show", "memory", "--micro-batch", "3"]
    texts = {kind: run(keep, *asked, "--format", kind).stdout for kind in ("markdown", "csv", "html", "latex")}
    found = json.loads(run(keep, *asked, "--json").stdout)
    sizes = [one["device_total_bytes"] for one in found["cells"]]
    assert len(sizes) == 4
    assert "LoRA rank 4" in found["note"]
    *rows, note = texts["csv"].splitlines()
    assert [int(one["device_total_bytes"]) for one in csv.DictReader(rows)] == sizes
    assert note == f"# {found['note']}"
    lines = [line.strip("| ").split(" | ") for line in texts["markdown"].splitlines()[2:4]]
    assert [cell for line in lines for cell in line[2:]] == [gib(size) for size in sizes]
    assert texts["html"].count("<td>") == 8
    assert texts["latex"].count(r"\\") == 3
    again = cli_process("table", *asked, "--jobs", "2", cwd=keep)
    assert again.stdout == texts["markdown"]  # whatever the number of processes


@pytest.mark.parametrize("show", ["memory", "max-batch"])
def test_each_gpu_has_its_own_workspace(show: str) -> None:
    """cuBLAS's is 8 MiB on an RTX 4090 and 32 MiB on an RTX 5090, whose layouts are else the same."""
    alone = filled(["qwen2.5-0.5b"], ["rtx5090"], show=show, methods=["qlora"])
    behind = filled(["qwen2.5-0.5b"], ["rtx4090", "rtx5090"], show=show, methods=["qlora"])
    assert [cell for _, cell in each(behind)][-1] == [cell for _, cell in each(alone)][-1]


def test_what_no_block_describes_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = vramplan.load_model("smollm2-135m").model_copy(update={"model_type": "unheard-of", "name": "a/b"})
    with pytest.raises(VramplanError, match="no block describes 'unheard-of'"):
        table_request([spec], ["t4"])
    small = table_request(["smollm2-135m"], ["t4"])
    one = TableRequest(small.models, small.cards, ("lora",), (64,), "memory", 1, {}, ("a/b",))
    assert "not described and left out: a/b" in fill(one).note


@pytest.mark.parametrize(
    ("file", "name", "few"),
    [
        ("docs/guides/which-gpu.md", "readme", ["qwen2.5-7b"]),
        ("docs/tables.md", "batch-2048", ["qwen3-14b"]),
        ("docs/tables.md", "card-8192", ["qwen3-8b", "gemma-3-4b-it"]),
    ],
)
def test_our_own_tables_are_kept(file: str, name: str, few: list[str]) -> None:
    """A few rows of each: all of them take minutes (``vramplan table --check FILE``)."""
    lines = embedded.read(ROOT / file)
    region = next(one for one in embedded.regions(ROOT / file, lines) if one.name == name)
    kept = lines[region.first : region.end]
    wanted = read(ROOT / "vramplan-table.toml", [name])[name].request
    rows = grid(filled(**{**wanted, "models": few}))[1]
    assert len(rows) == 3 * len(few)
    for row in rows:
        assert "| " + " | ".join(row) + " |\n" in kept, f"run vramplan table --write {file}"
    assert f"vramplan {vramplan.__version__}, analytic estimator ({VERSIONS})" in kept[-1]
