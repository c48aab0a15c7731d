"""What several test files share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from vramplan.analytic.families import FAMILIES
from vramplan.analytic.play import Setting
from vramplan.analytic.unfold import Fold
from vramplan.card import Card
from vramplan.catalog import find_card, find_model
from vramplan.job import Job
from vramplan.spec import Config, ModelSpec

ROOT = Path(__file__).parent.parent


def spec_of(name: str, **config: Any) -> ModelSpec:
    """A shipped model, some keys of its configuration changed."""
    spec = find_model(name)
    assert spec is not None
    return spec.model_copy(update={"config": {**spec.config, **config}}) if config else spec


def card_of(name: str = "h100") -> Card:
    """A card of the catalogue."""
    return find_card(name)


def setting_of(spec: ModelSpec, job: Job, whole: bool = True) -> tuple[Setting, Fold]:
    """A setting that plays every layer."""
    family, config = FAMILIES[spec.model_type], Config(spec.config, spec.name)
    kinds = family.kinds(config)
    plan = Fold(tuple(kinds), len(kinds), 0, 1)
    return Setting(family, config, job, plan.played, True), plan


def cli(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, 80 columns wide."""
    return subprocess.run(
        [sys.executable, "-m", "vramplan", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", **environment},
        timeout=120,
        check=False,
    )


def cli_json(*arguments: str) -> Any:
    """What `--json` prints."""
    done = cli(*arguments, "--json")
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)
