"""A built wheel holds the model specs and works from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.helpers import ROOT
from vramplan.emulated_gpu.cuda_libraries import SOURCES
from vramplan.memory import passes

STUB = "vramplan/memory/_passes.pyi"


def test_a_wheel_works_from_an_empty_folder(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    assert "vramplan/model_specs/Qwen/Qwen2.5-7B.json" in names
    assert "vramplan/inputs/gpus.json" in names
    assert "vramplan/model_specs/index.json" in names
    assert "vramplan/py.typed" in names
    assert ("abi3" in wheel.name) == any(name.startswith("vramplan/memory/_passes.") for name in names - {STUB})
    assert passes.compiled is None or "-cp310-abi3-" in wheel.name
    sources = {name for name in names if name.endswith((".c", ".h"))}
    assert sources == {f"vramplan/emulated_gpu/libraries/{path.name}" for path in SOURCES.iterdir()}
    assert "vramplan/emulated_gpu/startup/sitecustomize.py" in names
    assert not any(name.startswith(("tests/", "model_specs/")) for name in names)
    empty = tmp_path / "empty"
    empty.mkdir()
    code = (
        "import vramplan, pathlib\n"
        "assert 'site' in vramplan.__file__, vramplan.__file__\n"
        "from vramplan.cli import main\n"
        "import sys; sys.argv = ['vramplan', 'suggest', 'qwen2.5-0.5b', '--gpu', 'rtx3060', '--global-batch', '8']\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "per_device_train_batch_size 2   gradient_accumulation_steps 4" in done.stdout
    assert not list(empty.iterdir())
