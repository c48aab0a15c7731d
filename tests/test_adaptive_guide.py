"""The guide's three loops run, and end after as many samples."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tests.helpers import ROOT

GUIDE = ROOT / "docs" / "guides" / "adaptive-training-loop.md"
FILE = re.compile(r'^```python title="(?P<name>[^"]+)"\n(?P<text>.*?)^```$', re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", ["plain_loop.py", "accelerate_loop.py", "with_trainer.py"])
@pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning", "ignore:.pin_memory:UserWarning")
def test_the_guides_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {match["name"]: match["text"] for match in FILE.finditer(GUIDE.read_text())}
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tiny", raising=False)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    runpy.run_path(str(tmp_path / name))
    steps, samples, batch = map(int, capsys.readouterr().out.splitlines()[-1].split())
    assert samples == 2 * 256
    assert steps < 128  # the batch has grown
    assert batch > 4
    assert set(files) == {"tiny.py", "plain_loop.py", "accelerate_loop.py", "with_trainer.py"}


def test_the_table_of_costs_is_the_measurement() -> None:
    import json

    (results,) = json.loads((ROOT / "benchmarks" / "gradient_norms.json").read_text()).values()
    jobs = {name: result for name, result in results.items() if name != "torch"}
    assert len(jobs) == 3
    for name, result in jobs.items():
        micro_batch, length = (int(number) for number in re.findall(r"micro-batch (\d+),.* (\d+) tokens", name)[0])
        costs = (1 + (result["hooks"] - 1) / each for each in (1, 2, 8))  # a step that is not measured costs nothing
        line = f"| {micro_batch} x {length} | " + " | ".join(f"{cost:.3f}" for cost in costs) + " |"
        assert line in GUIDE.read_text()
