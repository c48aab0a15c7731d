"""The README is true: its commands run as written, its output is what they print, every command and flag is in it.

``UPDATE_DOCS=1 python -m pytest tests/test_docs.py`` writes the outputs anew.
"""

from __future__ import annotations

import os
import re
import shlex
from importlib.util import find_spec

import pytest

from tests import learn, matrix
from tests.helpers import ROOT, cli
from tests.test_cli import FLAGS

README = ROOT / "README.md"
OUTPUT = re.compile(r"<!-- output: (?P<command>.*?) -->\n```\n(?P<text>.*?)```\n", re.DOTALL)


def printed(command: str) -> str:
    done = cli(*shlex.split(command))
    assert done.returncode == 0, done.stderr
    return "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())


def test_outputs_are_what_the_commands_print() -> None:
    text = README.read_text()
    if os.environ.get("UPDATE_DOCS"):
        renewed = OUTPUT.sub(lambda m: f"<!-- output: {m['command']} -->\n```\n{printed(m['command'])}```\n", text)
        README.write_text(renewed)
        return
    found = list(OUTPUT.finditer(text))
    assert found
    for match in found:
        assert match["text"] == printed(match["command"]), f"run UPDATE_DOCS=1 pytest {__file__}"
        assert match["command"] in text.replace(match[0], ""), "the command above an output is the one that made it"


def test_two_commands_do_all_the_set_up() -> None:
    commands = re.findall(r"^python3 -m venv .*$", README.read_text(), re.MULTILINE)
    assert len(commands) == 2
    assert "vramplan suggest" in commands[0]
    assert commands[1].endswith("-m pytest")
    assert "-m pytest$" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("command", FLAGS)
def test_every_command_and_flag_is_documented(command: str) -> None:
    text = README.read_text()
    assert f"vramplan {command} " in text
    unsaid = {"--help", "--strategy", "--offload", "--quantize"}  # only refuse so far, and say so themselves
    missing = [flag for flag in FLAGS[command].split() if flag not in text and flag not in unsaid]
    assert not missing


def test_python_examples_run() -> None:
    own, example = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert compile(own, "README.md", "exec")  # needs the reader's model; tests/test_trace_models.py has one


def test_the_repository_speaks_of_the_project_alone() -> None:
    for path in (README, ROOT / "CHANGELOG.md", ROOT / "model_specs" / "README.md", ROOT / ".ci" / "run"):
        assert not re.search(r"/work/|/tmp/|/root/|https?://[^ )]*(pypi|simple)", path.read_text()), path


@pytest.mark.skipif(find_spec("torch") is None, reason="the same as with torch, and long")
def test_the_tables_of_agreement_are_what_the_traces_say() -> None:
    """``python -m tests.matrix`` writes them."""
    text = README.read_text()
    assert matrix.in_readme(text) == text


def test_the_tables_of_measured_runs_are_what_the_estimates_say() -> None:
    """``python -m tests.learn`` writes them."""
    text = README.read_text()
    assert learn.in_readme(text) == text
