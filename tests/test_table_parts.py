"""Rows of tables that are kept between runs, and tables of parts that several machines computed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import cli
from vramplan import disk_cache
from vramplan.errors import ConfigError
from vramplan.planner.table import Table, TableRequest, fill, processes, table_request
from vramplan.planner.table.effort import by_effort, efforts, share
from vramplan.planner.table.kept_rows import KeptRows
from vramplan.planner.table.parts import Share, merge, read_parts, write_part
from vramplan.planner.table.row import Cell, Row, compute_row, places_of
from vramplan.planner.table.row_data import from_data, to_data

FLAGS = ["--models", "smollm2-135m,pythia-70m", "--gpus", "t4,rtx4090", "--methods", "lora,full", "--jobs", "1"]


@pytest.fixture
def request_() -> TableRequest:
    return table_request(
        ["smollm2-135m", "pythia-70m"], ["t4", "rtx4090"], methods=["lora", "full"], seq_lens=[256, 512]
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VRAMPLAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VRAMPLAN_NO_CACHE", "0")
    monkeypatch.setattr(disk_cache, "_disabled", False)
    return tmp_path / "cache"


def computed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The places of rows that are computed from now on."""
    places: list[Any] = []

    def count(request: TableRequest, place: Any) -> Row:
        places.append(place)
        return compute_row(request, place)

    monkeypatch.setattr(processes, "compute_row", count)
    return places


def test_a_table_that_grew_takes_its_new_rows_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = computed(monkeypatch)
    first = vramplan.table(["smollm2-135m"], ["t4", "rtx4090"], methods=["lora", "full"])
    assert len(places) == 2
    assert vramplan.table(["smollm2-135m"], ["t4", "rtx4090"], methods=["lora", "full"]) == first
    assert len(places) == 2
    grown = vramplan.table(["pythia-70m", "smollm2-135m"], ["t4", "rtx4090"], methods=["lora", "full"])
    assert [place.model for place in places[2:]] == [0, 0]
    assert list(grown.rows.values())[2:] == list(first.rows.values())
    disk_cache.disable()
    assert vramplan.table(["smollm2-135m"], ["t4", "rtx4090"], methods=["lora", "full"]).rows == first.rows
    assert len(places) == 6


def test_a_row_is_kept_by_all_that_it_depends_on(request_: TableRequest) -> None:
    """Every field of a model and of a GPU, and every setting of the table."""

    def keys(request: TableRequest) -> set[str]:
        kept = KeptRows(request)
        return {kept._key(place) for place in places_of(request)}

    def replaced(**changes: Any) -> TableRequest:
        fields = ("models", "cards", "methods", "lengths", "show", "micro_batch_size", "job", "left_out")
        return TableRequest(**({name: getattr(request_, name) for name in fields} | changes))

    before = keys(request_)
    assert len(before) == len(places_of(request_)) == 8
    assert keys(replaced(left_out=("a/b",))) == before, "a row does not know what is left out of the table"
    changed = [
        replaced(show="speed"),
        replaced(micro_batch_size=2),
        replaced(job={"loss": "liger"}),
        replaced(lengths=(1024,)),
        replaced(methods=("dora",)),
        replaced(cards=request_.cards[:1]),
        replaced(cards=request_.cards[::-1]),
    ]
    gpu, model = request_.cards[0], request_.models[0]
    for name, value in vars(gpu).items():
        if name in type(gpu).model_fields:
            other = gpu.model_copy(update={name: (value, "other")})
            changed.append(replaced(cards=(other, *request_.cards[1:])))
    for name, value in vars(model).items():
        if name in type(model).model_fields:
            changed.append(replaced(models=(model.model_copy(update={name: (value, "other")}),)))
    for request in changed:
        assert not keys(request) & before
        assert request.digest != request_.digest


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"cells": []}', b"[" * 100_000, b"\xff"])
def test_a_kept_row_that_is_none_is_computed(cache: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    request = table_request(["pythia-70m"], ["t4"])
    before = fill(request)
    monkeypatch.setattr(disk_cache, "load", lambda kind, key: content)
    assert fill(request) == before


def test_rows_as_json_values(request_: TableRequest) -> None:
    rows = [compute_row(request_, place) for place in places_of(request_)[:2]]
    rows.append(Row((Cell("t4", None, False, "no \u2028 bf16"), Cell("rtx4090", None, False, "no \u2028 bf16")), ()))
    for row in rows:
        data = json.loads(json.dumps(to_data(row)))
        assert from_data(data, request_) == row
    assert to_data(rows[2])["reasons"] == ["no \u2028 bf16"]
    card = table_request(["pythia-70m"], ["t4", "rtx4090"], show="card")
    for place in places_of(card):
        row = compute_row(card, place)
        assert from_data(to_data(row), card) == row


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("cells", 0, 0), "rtx4090"),
        (("cells", 0, 0), ["t4"]),
        (("cells", 0, 1), "4"),
        (("cells", 0, 1), 4.0),
        (("cells", 0, 1), True),
        (("cells", 0, 1), -1),
        (("cells", 0, 2), 1),
        (("cells", 0, 3), 7),
        (("cells", 0, 3), -1),
        (("cells", 0), []),
        (("cells", 0), "text"),
        (("cells",), []),
        (("cells",), None),
        (("reasons",), [1]),
        (("reasons",), []),
        (("assumptions",), [[1]]),
        (("assumptions",), 3),
    ],
)
def test_a_row_that_is_broken(request_: TableRequest, path: tuple[Any, ...], value: Any) -> None:
    data = json.loads(json.dumps(to_data(compute_row(request_, places_of(request_)[0]))))
    part = data
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(ValueError, match=r"^not "):
        from_data(data, request_)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 12, 40])
def test_shares_are_all_rows_once_and_even(count: int) -> None:
    request = table_request(
        ["qwen2.5-*b", "smollm2-*"], ["t4"], methods=["lora", "full", "dora"], seq_lens=[512, 1024, 2048]
    )
    shares = [share(request, number, count) for number in range(1, count + 1)]
    assert sorted(place for one in shares for place in one) == places_of(request)
    effort = efforts(request)
    loads = [sum(effort[place] for place in one) for one in shares]
    assert max(loads) - min(loads) <= max(effort.values())
    longest = by_effort(request, shares[0])
    assert sorted(longest) == shares[0]
    assert [effort[place] for place in longest] == sorted((effort[place] for place in longest), reverse=True)


def test_parts_make_the_same_table(tmp_path: Path, request_: TableRequest) -> None:
    whole = fill(request_)
    paths = []
    for number in (3, 1, 2):
        paths.append(tmp_path / f"{number}.json")
        write_part(paths[-1], {"one": request_}, Share(number, 3))
    merged: Table = merge("one", request_, read_parts(paths))
    assert merged == whole
    assert list(merged.rows) == list(whole.rows)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Both shares of a table, and one of another division."""
    for number in (1, 2):
        assert run(tmp_path, *FLAGS, "--shard", f"{number}/2").returncode == 0
    assert run(tmp_path, *FLAGS, "--shard", "1/3", "--out", "third.json").returncode == 0
    return tmp_path


def run(folder: Path, *arguments: str) -> Any:
    return cli("table", *arguments, cwd=folder)


FIRST, SECOND = "vramplan-table-1-of-2.json", "vramplan-table-2-of-2.json"


def test_parts_on_the_command_line(parts: Path) -> None:
    done = run(parts, *FLAGS, "--shard", "2/2")
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(rf"{SECOND}: \d rows of table, share 2/2\n", done.stderr)
    for more in ([], ["--format", "csv"], ["--json"]):
        whole, merged = run(parts, *FLAGS, *more), run(parts, *FLAGS, *more, "--merge", SECOND, FIRST)
        assert (merged.returncode, merged.stdout) == (0, whole.stdout)
    (parts / "doc.md").write_text("<!-- vramplan table: begin table -->\n<!-- vramplan table: end table -->\n")
    assert run(parts, *FLAGS, "--write", "doc.md", "--merge", FIRST, SECOND).returncode == 0
    assert run(parts, *FLAGS, "--check", "doc.md").returncode == 0
    assert run(parts, *FLAGS, "--check", "doc.md", "--merge", FIRST, SECOND).returncode == 0


def test_parts_of_all_tables_of_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "vramplan-table.toml").write_text(
        '[one]\nmodels = ["pythia-70m"]\ngpus = ["t4"]\nmethods = ["lora", "full"]\n\n'
        '[two]\nmodels = ["pythia-70m"]\ngpus = ["t4"]\nshow = "card"\n'
    )
    for number in (1, 2):
        assert run(tmp_path, "--shard", f"{number}/2", "--jobs", "1").returncode == 0
    whole = run(tmp_path, "--jobs", "1").stdout
    assert whole.count("| EleutherAI/pythia-70m |") == 3
    assert run(tmp_path, "--merge", FIRST, SECOND).stdout == whole
    assert run(tmp_path, "--name", "two", "--merge", FIRST, SECOND).stdout in whole
    config = tmp_path / "vramplan-table.toml"
    config.write_text(config.read_text() + '\n[three]\nmodels = ["pythia-70m"]\ngpus = ["t4"]\n')
    done = run(tmp_path, "--merge", FIRST, SECOND)
    assert done.stderr == f"vramplan: {FIRST}: has no table three, but one, two\n"


def edited(folder: Path, name: str, change: Any) -> None:
    path = folder / name
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def test_parts_that_do_not_make_the_table(parts: Path) -> None:
    def refusal(*files: str, flags: list[str] = FLAGS) -> str:
        done = run(parts, *flags, "--merge", *files)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        return done.stderr.removeprefix("vramplan: ").rstrip()

    assert refusal(FIRST) == "share 2 of 2 is missing"
    assert refusal("third.json") == "shares 2, 3 of 3 are missing"
    assert refusal(FIRST, SECOND, FIRST) == f"{FIRST} and {FIRST} are both share 1/2"
    assert refusal(FIRST, "third.json") == f"{FIRST} is share 1/2 and third.json 1/3: they do not make one table"
    assert refusal("none.json") == "none.json: cannot be read (No such file or directory)"
    other = [flag if flag != "t4,rtx4090" else "t4,l4" for flag in FLAGS]
    different = (
        f"{FIRST}: the table called table has other models, GPUs or settings; --merge needs the options of --shard"
    )
    assert refusal(FIRST, SECOND, flags=other) == different
    assert refusal(FIRST, SECOND, flags=[*FLAGS, "--loss", "liger"]) == different
    assert refusal(FIRST, SECOND, flags=[*FLAGS, "--confidence", "0"]) == different
    (parts / "other.json").write_text("{}")
    assert refusal("other.json") == "other.json: is no part of a table; `vramplan table --shard K/N` writes them"
    (parts / "other.json").write_text("[" * 99_999)
    assert refusal("other.json") == "other.json: nested too deeply"
    whole = (parts / FIRST).read_bytes()
    (parts / FIRST).write_bytes(whole[: len(whole) // 2])
    assert refusal(FIRST, SECOND).startswith(f"{FIRST}:1: broken JSON")
    for change, said in (
        (lambda part: part.update(written_by="vramplan 0.0.1"), "was written by vramplan 0.0.1, and this is vramplan"),
        (lambda part: part.update({"vramplan-table-part": 2}), "was written by"),
        (lambda part: part.update(share=[1]), "is broken; write the part again"),
        (lambda part: part.update(share=[True, 2]), "is broken; write the part again"),
        (lambda part: part.update(share=[0, 2]), "is broken; write the part again"),
        (lambda part: part.update(tables=[]), "is broken; write the part again"),
        (lambda part: part.update(tables={}), "has no table table, but none at all"),
        (lambda part: part["tables"]["table"].pop("rows"), "the table called table is broken"),
        (lambda part: part["tables"]["table"]["rows"].append([99, {}]), "the table called table is broken"),
        (lambda part: part["tables"]["table"]["rows"][0][1].clear(), "the table called table is broken"),
        (lambda part: part["tables"]["table"]["rows"].pop(), "the table called table lacks rows of share 1/2"),
    ):
        (parts / FIRST).write_bytes(whole)
        edited(parts, FIRST, change)
        assert said in refusal(FIRST, SECOND)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--shard", "0/3"], "--shard 0/3: expected K/N, from 1/N to N/N, such as 3/16"),
        (["--shard", "4/3"], "--shard 4/3: expected"),
        (["--shard", "3"], "--shard 3: expected"),
        (["--shard", "1/2", "--check", "doc.md"], "--check and --shard: give one"),
        (["--shard", "1/2", "--merge", "a.json"], "--shard and --merge: give one"),
        (["--shard", "1/2", "--format", "csv"], "--shard and --format: give one"),
        (["--shard", "1/2", "--json"], "--shard and --json: give one"),
        (["--shard", "1/2", "--out", "part.txt"], "--out part.txt: the name must end in .json"),
        (["--shard", "1/2", "--out", "none/part.json"], "--out none/part.json: cannot be written there"),
        (["--out", "part.json"], "--out part.json: give it with --shard"),
        (["--merge"], "--merge: give the files of all shares"),
        (["part.json"], "part.json: give it with --merge"),
    ],
)
def test_flags_that_do_not_go_together(tmp_path: Path, flags: list[str], said: str) -> None:
    done = run(tmp_path, *FLAGS, *flags)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


def test_why_rows_are_not_kept_is_said_with_v(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("VRAMPLAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VRAMPLAN_NO_CACHE", "0")
    monkeypatch.setattr(disk_cache, "_notice", None)
    flags = ["--models", "pythia-70m", "--gpus", "t4", "--jobs", "1"]
    assert run(tmp_path, *flags).stderr == ""
    said = f"vramplan: results are not kept: {tmp_path / 'cache'} is not a folder\n"
    assert run(tmp_path, *flags, "-v").stderr == said


def test_a_larger_gpu_with_a_smaller_batch_is_named() -> None:
    request = table_request(["qwen3-14b"], ["a100-80gb", "h100", "h200"], methods=["qlora"])
    names = [card.name for card in request.cards]

    def table(*batches: int) -> Table:
        row = Row(tuple(Cell(name, batch, True) for name, batch in zip(names, batches, strict=True)), ())
        return Table(request, {places_of(request)[0]: row})

    assert table(14, 12, 27).smaller_on_larger == ["Qwen/Qwen3-14B qlora: 12 on H100 SXM, 14 on A100 80GB SXM"]
    assert "a GPU can fit less than one with less memory" in table(14, 12, 27).note
    assert table(12, 14, 27).smaller_on_larger == []
    assert "less memory" not in table(12, 14, 27).note


def test_a_share_that_cannot_be_written(parts: Path) -> None:
    (parts / FIRST).chmod(0o444)
    with pytest.raises(ConfigError, match="is read-only"):
        write_part(parts / FIRST, {"one": table_request(["pythia-70m"], ["t4"])}, Share(1, 1))
