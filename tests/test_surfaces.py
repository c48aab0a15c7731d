"""Where people meet vramplan beside its own command line: the `hf` command line, and coding agents."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.helpers import ROOT, cli, typer_command
from vramplan.cli.commands import command_of
from vramplan.render.json_schema import schema_of

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
    fields = {
        "suggest": ("recommended", "plans", "advice", "estimate", "capacity_bytes", "assumptions"),
        "check": ("fits", "notes"),
        "oom": ("allocation", "causes", "check"),
    }
    for command, names in fields.items():
        known = json.dumps(schema_of(command))
        for name in names:
            assert f"`{name}" in text or f".{name}" in text
            assert f'"{name}"' in known, (command, name)
    assert cli("suggest", "qwen2.5-0.5b", "--gpu", "rtx3060", "--global-batch", "8", "--json").returncode == 0
