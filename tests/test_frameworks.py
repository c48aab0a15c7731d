"""Configurations as people write them, each against the job that it comes to (tests/configs/expected.json)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from vramplan.errors import VramplanError
from vramplan.frameworks import parsed_config as reading_module
from vramplan.frameworks.detect import from_path
from vramplan.frameworks.registry import FRAMEWORKS
from vramplan.planner.check import read

FOLDER = Path(__file__).parent / "configs"
REFERENCED = (
    "ds_z3.json",
    "zero.json",
    "old_args.json",
    "accelerate_ds.yaml",
    "fsdp_accelerate.yaml",
    "accelerate_zero3.yaml",
    "stage1.json",
    "stage2.json",
    "stage3.json",
    "offload_.json",
)
"""Files that others name."""
REFUSED = ("torchtitan", "megatron", "deepspeed", "litgpt", "xtuner")
"""Frameworks of which most is refused."""
CASES = sorted(
    str(path.relative_to(FOLDER))
    for path in FOLDER.glob("*/*")
    if path.name not in REFERENCED and path.parent.name != "people"
)
EXPECTED = json.loads((FOLDER / "expected.json").read_text()) if (FOLDER / "expected.json").exists() else {}


def _as_flag(field: str, value: str) -> str:
    return f"--{field.replace('_', '-')} {value}".rstrip()


def come_to(name: str) -> dict[str, Any]:
    """What a configuration comes to, or what it is refused for."""
    try:
        found = from_path(FOLDER / name, None, {})
        with patch.object(reading_module, "installed_version", return_value=None):  # whatever is installed here
            reading = read(found, 1)
    except VramplanError as error:
        return {"error": error.spelled(_as_flag).replace(f"{FOLDER}/", "")}
    return {
        "framework": f"{reading.framework} {reading.version}",
        "model": reading.model,
        "job": {key: list(value) if isinstance(value, tuple) else value for key, value in reading.job.items()},
        "evaluates": reading.eval_batch_size,
        "notes": [f"{note.kind}: {note.key} {note.text}" for note in reading.notes if note.kind != "ignored"],
        "ignored": sorted(note.key for note in reading.notes if note.kind == "ignored"),
    }


@pytest.mark.parametrize("name", CASES)
def test_configurations(name: str) -> None:
    answer = come_to(name)
    assert answer == EXPECTED[name]
    assert "\\u0002" not in json.dumps(answer)  # a setting whose spelling nobody chose


def test_every_framework_has_its_folder() -> None:
    counts = {
        folder.name: len([name for name in CASES if name.startswith(f"{folder.name}/")])
        for folder in FOLDER.glob("*/")
        if folder.name != "people"
    }
    assert counts.keys() == {*FRAMEWORKS, "scripts"}
    few = {*REFUSED, *(name for name, framework in FRAMEWORKS.items() if framework.programs)}
    assert all(count >= (4 if name in few else 8) for name, count in counts.items()), counts


def write() -> None:
    """Write what they come to now; to be read through before it is committed."""
    (FOLDER / "expected.json").write_text(json.dumps({name: come_to(name) for name in CASES}, indent=1) + "\n")


if __name__ == "__main__":
    write()
    print(os.path.relpath(FOLDER / "expected.json"))
