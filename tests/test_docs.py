"""The documentation is true: its examples run, outputs are what the commands print, the reference is complete.

``UPDATE_DOCS=1 python -m pytest tests/test_docs.py`` writes the outputs anew.

Examples run in a folder that holds the files which the pages show (fenced blocks with a title, such as
``yaml title="train.yaml"``). What needs a GPU, or takes minutes, is parsed by the command line and not run.
"""

from __future__ import annotations

import doctest
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests import matrix
from tests.helpers import ROOT, answered_once, cli, cli_process, typer_command
from tests.test_cli import FLAGS
from vramplan.cli import main
from vramplan.cli.commands import COMMANDS, command_of
from vramplan.inputs.prices import load_prices
from vramplan.planner import hardware_search

README = ROOT / "README.md"
ACCURACY = ROOT / "docs" / "accuracy.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
PROJECT_TEXTS = [
    *PAGES,
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "mkdocs.yml",
    ROOT / "model_specs" / "README.md",
    ROOT / "skills" / "vramplan" / "SKILL.md",
    ROOT / ".ci" / "run",
    *sorted((ROOT / ".github").rglob("*.yml")),
]
MOST_README_BYTES = 8192

OUTPUT = re.compile(r"<!-- output: (?P<command>.*?) -->\n```(?:text)?\n(?P<text>.*?)```\n", re.DOTALL)
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
TITLE = re.compile(r'title="(?P<name>[^"]+)"')

ONLY_PARSED = {
    r"^table --merge": "the parts of sixteen machines are not there",
    r"^(probe|measure) ": "runs on a GPU",
    r"^emulate ": "needs PyTorch's CUDA build",
    r"--probe|--gpu auto": "needs the GPU of this machine",
    r"^oom ": "needs the reader's own log; tests/test_out_of_memory.py has logs",
    r"^site ": "downloads Pyodide; tests/test_site.py makes one of other parts",
    r"^report ": "takes up to a minute; tests/test_report.py makes one",
    r"^table": "takes minutes; tests/test_tables.py makes small tables",
    r"--gpu any|--num-gpus auto|^suggest .*--gpu \S+,": "takes half a minute; tests/test_hardware.py has small models",
    r"^accuracy": "takes minutes; tests/learn.py makes the same tables",
    r"train\.py|mine:make|--tokenizer|my-model|run\.jsonl": "needs the reader's own files",
}
"""Commands that are parsed and not run, by pattern, and why."""
NEEDS_TORCH = re.compile(r"--by trace|--plot")
NOT_RUN_IN_PYTHON = re.compile(r"\btorch\b|\bTrainer\(|\bprobe\(|\bfind_max\(|\bprove\(|\"auto\"")
"""Python examples that need a GPU, torch or the reader's own code: compiled alone."""


# -- reading the pages -------------------------------------------------------------------------------------------------


def title_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def fences(path: Path) -> Iterator[tuple[str, str]]:
    """Info string and text of each fenced block."""
    for match in FENCE.finditer(path.read_text()):
        yield match["info"], match["text"]


@cache
def example_files() -> dict[str, str]:
    """Every file that a page shows, by its title; two pages may show the same file, if they agree."""
    files: dict[str, str] = {}
    for path in PAGES:
        for info, text in fences(path):
            title = TITLE.search(info)
            if title:
                assert files.setdefault(title["name"], text) == text, f"{path}: another {title['name']}"
    return files


def shell_commands(text: str) -> list[str]:
    """Command lines of vramplan in a shell block, continued lines joined, without comments and redirections."""
    lines = text.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines if line.startswith("vramplan ")]
    return [shlex.join(line[1 : line.index(">")] if ">" in line else line[1:]) for line in words]


def examples() -> list[Any]:
    """Every shell command of every page, but for those whose output is compared as well."""
    shown = {match["command"] for path in PAGES for match in OUTPUT.finditer(path.read_text())}
    found = [
        (title_of(path), command)
        for path in PAGES
        for info, text in fences(path)
        if info.split(" ")[0] in ("bash", "shell")
        for command in shell_commands(text)
        if " ".join(command.split()) not in shown
    ]
    return [pytest.param(command, id=f"{page}: {command}"[:110]) for page, command in dict.fromkeys(found)]


def reason_not_to_run(command: str) -> str | None:
    for pattern, reason in ONLY_PARSED.items():
        if re.search(pattern, command):
            return reason
    if NEEDS_TORCH.search(command) and (find_spec("torch") is None or find_spec("matplotlib") is None):
        return "needs an extra"
    return None


# -- running them ------------------------------------------------------------------------------------------------------


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command line, in this process, 80 columns wide."""
    output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    monkeypatch.setattr(sys, "argv", ["vramplan", *shlex.split(command)])
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    with redirect_stdout(output), redirect_stderr(errors), pytest.raises(SystemExit) as end:
        main()
    texts = [stream.buffer.getvalue().decode() for stream in (output, errors)]  # type: ignore[attr-defined]
    return int(end.value.code or 0), texts[0], texts[1]


def stripped(text: str) -> str:
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with every file that the pages show."""
    for name, text in example_files().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", [path for path in PAGES if OUTPUT.search(path.read_text())], ids=title_of)
def test_outputs_are_what_the_commands_print(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(command: str) -> str:
        code, output, errors = run(command, monkeypatch)
        assert code in (0, 1), errors
        return stripped(output)

    monkeypatch.setattr(hardware_search, "suggest_hardware", answered_once(hardware_search.suggest_hardware))
    text = path.read_text()
    if os.environ.get("UPDATE_DOCS"):
        path.write_text(
            OUTPUT.sub(lambda m: f"<!-- output: {m['command']} -->\n```text\n{printed(m['command'])}```\n", text)
        )
        return
    for match in OUTPUT.finditer(text):
        assert match["text"] == printed(match["command"]), f"run UPDATE_DOCS=1 pytest {__file__}"
        commands = [command for info, block in fences(path) if "bash" in info for command in command_lines(block)]
        assert match["command"] in commands, "the command is shown beside its output"


def command_lines(text: str) -> list[str]:
    """Commands of a shell block as an output names them: also behind an installation on the same line."""
    lines = [line.split("#")[0].rstrip() for line in text.replace("\\\n", " ").splitlines()]
    return [" ".join(line.rpartition("vramplan ")[2].split()) for line in lines if "vramplan " in line]


@pytest.mark.parametrize("command", examples())
def test_commands_run(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code says whether the job fits; 2 would be invalid input, 70 a defect."""
    if reason_not_to_run(command):
        words = shlex.split(command)
        name = command_of(words)
        typer_command(name).make_context(name, words[len(name.split()) :])  # raises where an option is unknown
        return
    code, _, errors = run(command, monkeypatch)
    assert code in (0, 1), errors


def test_the_prices_that_a_page_shows_are_read(folder: Path) -> None:
    """The command beside them is parsed alone."""
    lowest = load_prices(folder / "prices.toml").get("rtx4090")
    assert lowest is not None
    assert lowest.per_hour == 0.4


def test_the_first_answer_as_a_process_of_its_own() -> None:
    match = OUTPUT.search((ROOT / "docs" / "quickstart.md").read_text())
    assert match
    assert f".venv/bin/vramplan {match['command']}\n" in README.read_text()
    done = cli_process(*shlex.split(match["command"]))
    assert (done.returncode, done.stderr) == (0, "")
    assert os.environ.get("UPDATE_DOCS") or stripped(done.stdout) == match["text"]


def test_invalid_input_is_exit_code_2_as_documented() -> None:
    done = cli("suggest", "qwen2.5-7b", "--gpu", "no-such-gpu", "--global-batch", "16")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("path", [path for path in PAGES if "```python" in path.read_text()], ids=title_of)
def test_python_examples_run(path: Path, folder: Path) -> None:
    for info, text in fences(path):
        if info.split(" ")[0] != "python":
            continue
        code = compile(text, str(path), "exec")
        if not NOT_RUN_IN_PYTHON.search(text) and not TITLE.search(info):
            exec(code, {})


def examples() -> list[str]:
    """Modules with examples in their docstrings."""
    sources = sorted((ROOT / "vramplan").rglob("*.py"))
    with_examples = [path for path in sources if "    >>> " in path.read_text()]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in with_examples]


@pytest.mark.parametrize("module", examples())
def test_examples_of_docstrings_say_what_happens(module: str) -> None:
    outcome = doctest.testmod(import_module(module))
    assert outcome.attempted > 0
    assert outcome.failed == 0


# -- the reference -----------------------------------------------------------------------------------------------------


@cache
def generated() -> dict[str, str]:
    """The pages that the site's hook writes; it takes seconds."""
    spec = spec_from_file_location("build_reference", ROOT / "docs" / "build_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


@pytest.mark.parametrize("command", FLAGS)
def test_every_command_and_option_is_in_the_reference(command: str) -> None:
    pages = generated()
    page_of = command.replace(" ", "-")
    assert f"[`vramplan {command}`]({page_of}.md)" in pages["reference/commands/index.md"]
    page = pages[f"reference/commands/{page_of}.md"]
    missing = [flag for flag in FLAGS[command].split() if not re.search(rf"[` ]{flag}[` ]", page)]
    assert not missing


def test_every_python_name_is_in_the_reference() -> None:
    page = generated()["reference/python.md"]
    assert not [name for name in vramplan.__all__ if f"::: vramplan.{name}\n" not in page and name != "__version__"]
    commands = {*COMMANDS}
    assert commands == set(FLAGS)


def test_options_of_a_job_are_explained() -> None:
    """Every option that several commands share, and every field of a job that a file alone can set."""
    from vramplan.cli.options import JOB_FLAGS

    text = (ROOT / "docs" / "reference" / "options.md").read_text()
    assert not [name for name in JOB_FLAGS if f"`--{name.replace('_', '-')}`" not in text]
    fields = {flag.field or name for name, flag in JOB_FLAGS.items()}
    assert not [name for name in vramplan.Job.model_fields if name not in fields and f"`{name}`" not in text]


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES[1:]}
    assert not [page for page in pages if f" {page}\n" not in text]


@pytest.mark.parametrize("path", [ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"], ids=title_of)
def test_files_and_functions_that_are_named_exist(path: Path) -> None:
    named = set(re.findall(r"`((?:vramplan|tests|model_specs|docs)/[\w/.]*)(?::(\w+))?`", path.read_text()))
    assert named
    assert not [file for file, _ in named if not (ROOT / file).exists()]
    for file, name in named:
        assert not name or re.search(rf"^(def|class) {name}\b", (ROOT / file).read_text(), re.MULTILINE), (file, name)


@pytest.mark.skipif(find_spec("mkdocs") is None or find_spec("mkdocstrings") is None, reason="needs the extra docs")
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    import subprocess

    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reference" / "commands" / "suggest" / "index.html").is_file()


# -- the README, and what all pages keep to ----------------------------------------------------------------------------


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) <= MOST_README_BYTES


def test_two_commands_do_all_the_set_up() -> None:
    commands = re.findall(r"^python3 -m venv .*$", README.read_text(), re.MULTILINE)
    assert len(commands) == 2
    assert "vramplan suggest" in commands[0]
    assert commands[1].endswith("-m pytest")
    assert "-m pytest$" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("page", [*(ROOT / "docs").rglob("*.md")], ids=lambda page: page.stem)
def test_links_of_pages_lead_to_files_of_the_repository(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)\s#]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def test_local_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r'(?:\]\(|src="|srcset="|href=")(?!https?:|#)([^)"#]+)', README.read_text())
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


@pytest.mark.parametrize("path", PROJECT_TEXTS, ids=title_of)
def test_the_repository_speaks_of_the_project_alone(path: Path) -> None:
    assert not re.search(r"/work/|/tmp/|/root/|https?://[^ )]*(pypi|simple)", path.read_text())


@pytest.mark.full
def test_the_tables_of_agreement_are_what_the_traces_say(run_folder: Path) -> None:
    """``python -m tests.matrix`` writes them."""
    matrix.estimate_all(run_folder)
    text = ACCURACY.read_text()
    assert matrix.in_page(text) == text


def test_the_number_of_runs_of_trainers_is_that_of_the_files() -> None:
    """The tests of each file hold its largest error; the largest is that of GRPO on several GPUs."""
    runs = [line for path in (ROOT / "tests").glob("*_runs.jsonl") for line in path.read_text().splitlines()]
    assert len(runs) >= 1000
    assert "over 1,000 runs" in README.read_text()


def test_numbers_of_other_pages_are_those_of_the_accuracy_page() -> None:
    """The README and the page on how it works repeat figures that other tests keep true."""
    accuracy, readme = ACCURACY.read_text(), README.read_text()
    traced = re.search(r"^\| all \| ([\d,]+) \| \S+ \| (\S+) \| (\S+) \|", accuracy, re.MULTILINE)
    assert traced
    cases, p95, worst = traced.groups()
    assert f"{cases} traced" in readme
    assert f"P95 {p95} %, worst {worst.lstrip('+-')} %" in readme
    assert "| fms-acceleration | allocated | A | all known | 14 | +0.00% | 0.01% | +0.01% |" in accuracy
    assert "14 published GPU runs" in readme
    timed = re.search(r"^\| all \| (\d+) \| (\S+)% \| (\S+)% \| (\S+)% \| (\S+)% \|", accuracy, re.MULTILINE)
    ordered = re.search(r"^\| all groups \| all known \|.*\| (\d+) \| (\S+)% \|$", accuracy, re.MULTILINE)
    assert timed
    assert ordered
    runs, middle, p95, middle_of_sources, p95_of_sources = timed.groups()
    assert f"{runs} published runs, each left out while learning | median {middle} %, P95 {p95} %" in readme
    how = " ".join((ROOT / "docs" / "how-it-works.md").read_text().split())
    assert f"{runs} runs whose settings are all known are met within {middle} % in the median and {p95} %" in how
    assert f"within {middle_of_sources} % and {p95_of_sources} %" in how
    assert "Of {} pairs of plans that differ by more than 5 %, {} %".format(*ordered.groups()) in how
