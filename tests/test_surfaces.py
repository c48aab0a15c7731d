"""Where people meet vramplan beside its own command line: the `hf` command line, and coding agents."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.helpers import ROOT, cli, typer_command
from vramplan.cli.app import run
from vramplan.cli.commands import command_of

SKILL = ROOT / "skills" / "vramplan" / "SKILL.md"


def test_hf_runs_the_extension(tmp_path: Path) -> None:
    """The real client, from what `hf extensions install` leaves: a manifest, and the console script of that name."""
    pytest.importorskip("huggingface_hub.cli.extensions")
    scripts = Path(sys.executable).parent
    if not (scripts / "hf-vramplan").exists() or not (scripts / "hf").exists():
        pytest.skip("the console scripts are not installed")
    folder = tmp_path / ".local" / "share" / "hf" / "extensions" / "hf-vramplan"
    folder.mkdir(parents=True)
    manifest = {
        "owner": "someone", "repo": "hf-vramplan", "repo_id": "someone/hf-vramplan", "short_name": "vramplan",
        "executable_path": str(scripts / "hf-vramplan"), "type": "python", "installed_at": "2026-11-23T00:00:00+00:00",
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    environment = {**os.environ, "HOME": str(tmp_path), "HF_HUB_DISABLE_UPDATE_CHECK": "1", "HF_HUB_OFFLINE": "1"}
    words = ["suggest", "qwen2.5-0.5b", "--gpu", "rtx3060", "--global-batch", "8", "--json"]
    done = subprocess.run(
        [scripts / "hf", "vramplan", *words], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, cli(*words).stdout)


def test_the_hf_command_line_s_name_is_in_help_and_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    from vramplan.cli import version

    assert "Usage: vramplan " in cli("--help").stdout
    monkeypatch.setattr(version.sys, "argv", ["/usr/bin/hf-vramplan"])
    assert version.program() == "hf-vramplan"
    with redirect_stdout(io.StringIO()) as text, redirect_stderr(io.StringIO()) as errors:
        run(["suggest", "--help"])
        code = run(["suggest", "--no-such-option"])
    assert code == 2
    assert "Usage: hf-vramplan suggest" in text.getvalue()
    assert "see `hf-vramplan suggest --help`" in errors.getvalue()


def test_the_skill_has_a_name_and_says_when_to_use_it() -> None:
    _, head, body = SKILL.read_text().split("---\n", 2)
    fields = YAML(typ="safe").load(head)
    assert fields.keys() == {"name", "description"}
    assert fields["name"] == SKILL.parent.name
    assert len(fields["description"]) <= 1024
    assert "Use " in fields["description"]
    assert len(body.splitlines()) < 100


def test_the_skill_s_commands_and_fields_exist() -> None:
    text = SKILL.read_text()
    commands = re.findall(r"`(?:vramplan) ([a-z]+ [^`]*)`", text)
    assert len(commands) >= 9
    for line in commands:
        words = shlex.split(line.replace(" N", " 16").replace("NAME", "qwen"))
        name = command_of(words)
        typer_command(name).make_context(name, words[len(name.split()) :])  # raises where an option is unknown


ANSWERS = {
    "suggest": ("qwen2.5-0.5b", "--gpu", "3080", "--global-batch", "8"),
    "check": ("train.yaml", "--gpu", "rtx3060"),
    "oom": (str(ROOT / "tests" / "oom_logs" / "loss.txt"),),
}
FIELD = re.compile(r"`\.?([a-z_]+(?:\.[a-z_]+)*)`")
VALUES = {"doubt", "a100", "suggest", "estimate", "check", "oom", "uvx", "vramplan", "auto", "rtx4090"}
"""What stands in backticks and is no field."""


def test_the_skill_s_fields_are_those_of_answers(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ncutoff_len: 512\n")
    answers = {name: json.loads(cli(name, *words, "--json", cwd=tmp_path).stdout) for name, words in ANSWERS.items()}
    items = re.findall(r"(?m)^- .*(?:\n  .*)*", SKILL.read_text().partition("## Read the answer")[2])
    seen = set()
    for item in items:
        commands = [name for name in ANSWERS if f"`{name}`" in item.partition(":")[0] + item[:40]] or [*ANSWERS]
        for path in FIELD.findall(item):
            if path in VALUES:
                continue
            found = [answer for name, answer in answers.items() if name in commands and _has(answer, path.split("."))]
            assert found, (path, commands)
            seen.add(path)
    assert {"recommended", "plans", "recommended.micro_batch_size", "fits", "notes", "causes", "allocation"} <= seen
    suggested = answers["suggest"]
    assert suggested["recommended"] in suggested["plans"]
    assert [change["cost"] for change in suggested["advice"]].count("free") >= 1
    assert any("3080: the 10 GB board" in note for note in suggested["notes"])


def _has(answer: Any, path: list[str]) -> bool:
    """Whether an answer, or an item of one of its lists, has a field."""
    for name in path:
        items = [one for one in answer.values() if isinstance(one, list)] if len(path) == 1 else []
        if name not in answer:
            return any(isinstance(row, dict) and name in row for rows in items for row in rows)
        answer = answer[name]
    return True


def test_the_skill_runs_what_is_not_on_pypi() -> None:
    text = SKILL.read_text()
    assert "`uvx --from PATH_OR_URL vramplan`" in text
    assert "`pipx run --spec PATH_OR_URL vramplan`" in text
    assert not re.search(r"uvx vramplan|pipx run vramplan", text)


def test_the_skill_s_first_command_answers() -> None:
    assert cli("suggest", "qwen2.5-0.5b", "--gpu", "rtx3060", "--global-batch", "8", "--json").returncode == 0
