"""The site: its folder is whole, its answers are the command line's, and nothing in it asks another host."""

from __future__ import annotations

import io
import json
import re
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from subprocess import run
from sys import executable
from typing import Any

import pytest

import hatch_build
import vramplan
from tests.helpers import ROOT, answered_once, cli
from vramplan.cli import answers
from vramplan.errors import ConfigError
from vramplan.planner import hardware_search
from vramplan.render.web.answer import fragment, of_estimate, of_search
from vramplan.site import build, parts

LINES = (
    "suggest qwen2.5-7b --gpu rtx4090 --global-batch 16 --json",
    "suggest llama-3.1-8b --gpu a100-80gb --global-batch 32 --num-gpus 4 --strategy zero3 --json",
    "suggest qwen2.5-vl-3b-instruct --gpu rtx3090 --global-batch 8 --json",
    "suggest qwen2.5-0.5b --gpu rtx3060,rtx4090 --global-batch 16 --num-gpus auto --max-gpus 2 --json",
    "suggest qwen2.5-7b --gpu rtx4090 --global-batch 16 --for llamafactory",
    "estimate qwen2.5-0.5b --gpu rtx3060 --micro-batch 2 --json",
    "estimate llama-3.1-70b --gpu rtx4090 --method full --json",
    "images qwen2.5-vl-3b-instruct --gpu rtx4090 --sizes 448x448 --json",
    "compare qwen2.5-0.5b qwen2.5-1.5b --gpu rtx4090 --json",
    "gpus 4090 --json",
    "models qwen2.5-0.5b --json",
    "suggest qwen2.5-7b --gpu rtx4091 --global-batch 16 --json",
    "estimate qwen2.5-7b --gpu rtx4090 --seq-len 0 --json",
)

SHORT_LINES = tuple(line for line in LINES if not line.startswith(("suggest", "compare", "images")))
"""Lines that take no search, and so little time without the compiled core."""


def ask(line: str, **files: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(answers.answer(json.dumps({"words": line.split(), "files": files})))
    return answer


@pytest.mark.parametrize("line", LINES)
def test_an_answer_is_what_the_command_line_prints(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_search, "suggest_hardware", answered_once(hardware_search.suggest_hardware))
    printed = cli(*line.split())
    assert ask(line) == {"code": printed.returncode, "text": printed.stdout, "error": printed.stderr, "files": {}}
    assert bool(printed.stdout) != bool(printed.stderr)


CONFIG = """\
model_name_or_path: Qwen/Qwen2.5-7B
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
max_length: 4096
use_peft: true
lora_r: 16
lora_target_modules: all-linear
"""


def test_a_file_of_the_request_is_checked_and_what_is_written_comes_back(tmp_path: Path) -> None:
    line = "check {} --framework trl --gpu rtx4090 --json"
    (tmp_path / "train.yaml").write_text(CONFIG)
    checked = ask(line.format("train.yaml"), **{"train.yaml": CONFIG})
    printed = cli(*line.format("train.yaml").split(), cwd=tmp_path)
    assert checked == {"code": printed.returncode, "text": printed.stdout, "error": printed.stderr, "files": {}}
    written = ask("report qwen2.5-0.5b --gpu rtx3060 --seq-len 512 --gpus rtx4090 --out r.html --json")
    assert written["code"] == 0, written["error"]
    assert written["files"]["r.html"].startswith("<!doctype html>")
    assert not Path("r.html").exists()


def test_fragments_are_those_of_python() -> None:
    search = vramplan.suggest("qwen2.5-0.5b", "rtx3060", 8)
    asked = ask("suggest qwen2.5-0.5b --gpu rtx3060 --global-batch 8 --html answer")
    assert asked["text"] == fragment(of_search(search)) + "\n"
    row = ask("suggest qwen2.5-0.5b --gpu rtx3060 --global-batch 8 --html row")["text"]
    assert [int(size) for size in re.findall(r'data-size="(\d+)"', row)] == [1, 2, 4, 8]
    estimate = vramplan.estimate("qwen2.5-0.5b", "rtx3060", micro_batch_size=2)
    asked = ask("estimate qwen2.5-0.5b --gpu rtx3060 --micro-batch 2 --html")
    assert asked["text"] == fragment(of_estimate(estimate)) + "\n"
    assert ask("suggest qwen2.5-0.5b --gpu rtx3060 --global-batch 8 --html all")["code"] == 2


REFUSED = {
    "": "not a request",
    "[]": "not a request",
    '{"words": "gpus"}': "words: expected a list of texts",
    '{"words": ["gpus", "--json"], "files": {"../x": "text"}}': "is not the plain name of a file",
    '{"words": ["gpus", "--json"], "files": {"x": 1}}': "expected texts by name",
    '{"words": ["gpus", "--json"], "more": 1}': "not a request",
    '{"words": []}': "expected one of suggest",
    '{"words": ["probe", "qwen2.5-7b", "--json"]}': "expected one of suggest",
    '{"words": ["gpus"]}': "add --json",
    '{"words": ["gpus", "--jsn"]}': "not a complete command line",
    '{"words": ["suggest", "qwen2.5-7b", "--json"]}': "not a complete command line",
    "[" * 100_000: "not a request",
    json.dumps({"words": ["gpus", "x" * answers.MAX_REQUEST_CHARACTERS]}): "characters",
}


@pytest.mark.parametrize(("request_text", "why"), REFUSED.items(), ids=range(len(REFUSED)))
def test_any_request_has_an_answer_of_one_line(request_text: str, why: str) -> None:
    answer = json.loads(answers.answer(request_text))
    assert (answer["code"], answer["text"], answer["files"]) == (2, "", {})
    assert re.fullmatch(r"vramplan: [^\n]+\n", answer["error"])
    assert why in answer["error"]


# -- the folder --------------------------------------------------------------------------------------------------------


def wheel(module: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(f"{module}/__init__.py", f"# {module}\n")
        archive.writestr(f"{module}/core.cpython-314-wasm32-emscripten.so", b"\0asm")
        archive.writestr(f"{module}/core.pyi", "")
        archive.writestr(f"{module}-1.dist-info/licenses/LICENSE", "free\n")
    return out.getvalue()


def npm_archive(left_out: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name in (*build.PYODIDE_FILES, "README.md"):
            if name != left_out:
                info = tarfile.TarInfo(f"package/{name}")
                info.size = len(name)
                archive.addfile(info, io.BytesIO(name.encode()))
    return out.getvalue()


@pytest.fixture
def downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of parts with invented contents, which are the ones that are known."""
    pyodide, wheels = parts.parts()
    folder = tmp_path / "parts"
    folder.mkdir()
    known = []
    for part in (pyodide, *wheels):
        content = npm_archive() if part is pyodide else wheel(part.name.replace("-", "_"))
        (folder / part.file).write_bytes(content)
        known.append(replace(part, sha256=sha256(content).hexdigest()))
    monkeypatch.setattr(parts, "parts", lambda: (known[0], tuple(known[1:])))
    return folder


def test_the_folder_has_all_that_the_page_loads(downloaded: Path, tmp_path: Path) -> None:
    done = cli("site", "--out", str(tmp_path / "out"), "--parts", str(downloaded))
    assert done.returncode == 0, done.stderr
    assert ("not compiled for browsers" in done.stderr) != build.has_core()
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert f"{len(files)} files" in done.stdout
    assert files == {
        "index.html", build.WORKER, build.ARCHIVE, "licences.txt", *(f"pyodide/{name}" for name in build.PYODIDE_FILES)
    }  # fmt: skip
    with zipfile.ZipFile(tmp_path / "out" / build.ARCHIVE) as archive:
        names = archive.namelist()
    assert {"vramplan/cli/answers.py", "vramplan/inputs/gpus.json", "vramplan/model_specs/Qwen/Qwen2.5-7B.json"} < {
        *names
    }
    assert {"pydantic_core/core.cpython-314-wasm32-emscripten.so", "ruamel.yaml-1.dist-info/licenses/LICENSE"} < {
        *names
    }
    assert (build.CORE_IN_ARCHIVE in names) == build.has_core()
    assert not [name for name in names if name.endswith((".pyi", ".pyc", ".c")) or "emulated_gpu" in name]
    licences = (tmp_path / "out" / "licences.txt").read_text()
    assert all(f"{part.name} {part.version}" in licences for part in (parts.parts()[0], *parts.parts()[1]))


def test_the_same_parts_make_the_same_bytes(downloaded: Path) -> None:
    contents = parts.contents(downloaded)
    assert build.assembled(contents) == build.assembled(contents)


def test_the_archive_alone_answers(downloaded: Path, tmp_path: Path) -> None:
    """Neither a module that is left out is needed, nor a package that the site does not ship."""
    with zipfile.ZipFile(io.BytesIO(build.assembled(parts.contents(downloaded))[build.ARCHIVE])) as archive:
        archive.extractall(tmp_path / "modules", [name for name in archive.namelist() if name.startswith("vramplan/")])
    requests = [json.dumps({"words": line.split()}) for line in SHORT_LINES]
    fixed = {"words": ["check", "train.yaml", *["--framework", "trl", "--gpu", "rtx4090", "--fix", "--json"]]}
    requests.append(json.dumps({**fixed, "files": {"train.yaml": CONFIG}}))
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('rich', 'typer', 'huggingface_hub')))\n"
        f"sys.path.insert(0, {str(tmp_path / 'modules')!r}); from vramplan.cli import answers\n"
        f"print(answers.__file__)\nfor request in {requests!r}: print(answers.answer(request))"
    )
    done = run([executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    file, *texts = done.stdout.splitlines()
    assert Path(file).is_relative_to(tmp_path)
    expected = [json.loads(answers.answer(request)) for request in requests]
    assert [json.loads(text) for text in texts] == expected
    assert expected[-1]["code"] == 0


def test_a_part_that_is_missing_or_another_one_is_named(downloaded: Path, tmp_path: Path) -> None:
    pyodide, wheels = parts.parts()
    (downloaded / wheels[0].file).write_bytes(b"another")
    done = cli("site", "--out", str(tmp_path / "out"), "--parts", str(downloaded))
    assert done.returncode == 2
    assert f"is not {wheels[0].name} {wheels[0].version} (its SHA-256 differs)" in done.stderr
    (downloaded / pyodide.file).unlink()
    done = cli("site", "--out", str(tmp_path / "out"), "--parts", str(downloaded))
    assert done.returncode == 2
    assert pyodide.file in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_archive_without_a_file_is_refused(downloaded: Path) -> None:
    contents: Mapping[str, bytes] = {
        **parts.contents(downloaded), parts.parts()[0].file: npm_archive("pyodide.asm.wasm")
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"Pyodide's archive has no pyodide\.asm\.wasm"):
        build.assembled(contents)


def test_a_failing_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"npm is not installed.*--parts"):
        parts.download(tmp_path)
    (tmp_path / "npm").write_text("#!/bin/sh\necho 'npm error network' >&2\nexit 1\n")
    (tmp_path / "npm").chmod(0o755)
    with pytest.raises(ConfigError, match=r"npm cannot download a part of the site \(npm error network\).*--parts"):
        parts.download(tmp_path)


@pytest.mark.parametrize("name", ["app.js", "controls.html", "site.css", build.WORKER])
def test_no_other_host_is_named(name: str) -> None:
    text = (ROOT / "vramplan" / "site" / name).read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z0-9.-]+\.[a-z]{2,}", text)


def test_the_core_for_browsers_is_of_these_sources(tmp_path: Path) -> None:
    try:
        module = hatch_build.build_for_browsers(tmp_path / "built")
    except hatch_build.NotCompiled as reason:
        pytest.skip(str(reason))
    content = module.read_bytes()
    assert content.startswith(b"\0asm\1\0\0\0")
    assert hatch_build.source_digest().encode() in content
    if build.has_core():
        assert (ROOT / hatch_build.FOR_BROWSERS).read_bytes() == content, "_passes.c has changed: python hatch_build.py"
