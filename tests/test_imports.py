"""Import contracts, what starting up may load, lint and types."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec

import pytest

import vramplan
from tests.helpers import ROOT
from vramplan.analytic.architectures import ARCHITECTURES
from vramplan.analytic.architectures.towers import TOWERS

PACKAGE = ROOT / "vramplan"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)


def test_import_contracts(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlinter.cli import lint_imports

    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True, show_timings=False) == 0


HEAVY = ("torch", "transformers", "peft", "accelerate", "huggingface_hub", "httpx2", "httpx", "requests", "numpy")


def test_suggest_loads_no_heavy_package() -> None:
    done = run(
        "import sys, vramplan\n"
        "from vramplan.render import terminal\n"
        "vramplan.suggest('Qwen/Qwen2.5-7B-Instruct', 'rtx4090d', 16)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


COLD = {
    "gpus rtx": ("vramplan.planner", "vramplan.analytic", "vramplan.memory.optimizers", "vramplan.inputs.hub"),
    "suggest qwen2.5-7b --gpu rtx4090 --global-batch 16 --method lora --no-cache": (
        "rich.progress",
        "vramplan.inputs.nvml",
    ),
    "estimate qwen2.5-7b --gpu rtx4090": ("rich.progress", "vramplan.inputs.nvml"),
    "gpus rtx --json": ("rich", "vramplan.planner", "vramplan.analytic", "vramplan.memory"),
}
"""Commands, and what each may not load besides NEVER."""
NEVER = (
    *HEAVY,
    *("typer", "click", "pydantic", "pydantic_core", "annotated_types", "ruamel", "tomli", "tomllib", "pynvml"),
    *("argparse", "importlib.metadata", "logging", "asyncio", "subprocess", "multiprocessing", "http", "email", "ssl"),
    *("vramplan.frameworks", "vramplan.measurements", "vramplan.torch_backend", "vramplan.memory.measurement"),
    *("vramplan.cli.typer_app", "vramplan.inputs.hub", "vramplan.inputs.model_folder", "vramplan.render.json_types"),
)


@pytest.mark.parametrize("command", COLD)
def test_a_command_loads_what_it_needs(command: str) -> None:
    done = run(
        "import io, sys\n"
        "from contextlib import redirect_stdout\n"
        "from vramplan.cli import main\n"
        f"sys.argv = ['vramplan', *{command.split()!r}]\n"
        "try:\n"
        "    with redirect_stdout(io.StringIO()): main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print(*sys.modules)"
    )
    assert done.returncode == 0, done.stderr
    loaded = {".".join(name.split(".")[:n]) for name in done.stdout.split() for n in range(1, 5)}
    assert loaded & {*NEVER, *COLD[command]} == set()
    folder = "vramplan.analytic.architectures."
    families = {name.removeprefix(folder) for name in loaded if name.startswith(folder)} & {*ARCHITECTURES.modules}
    assert families == ({"llama"} if not command.startswith("gpus") else set()), "of the one architecture"
    towers = {name for name in loaded if name.startswith(f"{folder}towers.")}
    assert towers == set()


def test_tables_name_what_their_modules_hold() -> None:
    for table in (ARCHITECTURES, TOWERS):
        for module in table.modules:
            assert {name for name in table if table.module_of(name) == module} == {*table.records_of(module)}


def test_importing_the_package_costs_nothing() -> None:
    done = run(
        "import sys, vramplan; print([n for n in sys.modules if n.startswith(('vramplan.', 'pydantic', 'rich'))])"
    )
    assert done.stdout.strip() == "[]"


def test_the_core_runs_with_torch_blocked() -> None:
    done = run(
        "import sys\n"
        "for name in ('torch', 'transformers', 'peft'): sys.modules[name] = None\n"
        "import vramplan\n"
        "print(vramplan.suggest('llama-3.2-1b', 'rtx3060', 8).recommended.global_batch_size)"
    )
    assert done.stdout.strip() == "8", done.stderr


def test_public_names() -> None:
    assert sorted(vramplan.__all__) == sorted(vramplan._HOME)
    for name in vramplan.__all__:
        assert getattr(vramplan, name) is not None
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = vramplan.nothing_here


def test_nothing_happens_at_import() -> None:
    """Modules define; they do not read files, print or call the network."""
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        calls = [node for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
        assert not calls or path.name in ("__main__.py", "sitecustomize.py"), path


def test_no_file_is_long_without_need() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 500, path


@pytest.mark.parametrize("tool", ["ruff", "mypy"])
def test_lint_and_types(tool: str) -> None:
    assert find_spec(tool) is not None
    commands = {"ruff": [["check", "."], ["format", "--check", "."]], "mypy": [[]]}
    for arguments in commands[tool]:
        done = subprocess.run(
            [sys.executable, "-m", tool, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
