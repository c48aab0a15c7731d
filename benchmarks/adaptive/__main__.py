"""Runs what docs/guides/batch-that-grows.md shows; results are kept in benchmarks/adaptive/results.

python -m benchmarks.adaptive estimator       noise scale of Gaussian gradients against the known one
python -m benchmarks.adaptive quadratic       batches on a noisy quadratic against the analytic optimum
python -m benchmarks.adaptive from-scratch    policies against tuned fixed batches: 25 minutes on one core
python -m benchmarks.adaptive fine-tuning     the same of a model that was trained before: 12 minutes
python -m benchmarks.adaptive pictures        pictures and tables of what was run
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
TASKS = {"from-scratch": "from scratch", "fine-tuning": "fine-tuning"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adaptive", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("estimator", "quadratic", *TASKS, "pictures"))
    what = parser.parse_args().what
    RESULTS.mkdir(exist_ok=True)
    if what in TASKS:
        from benchmarks.adaptive import comparison

        name = what.replace("-", "_")
        task = comparison.TASKS[TASKS[what]]
        comparison.run_all(task, RESULTS / f"{name}.jsonl", RESULTS / f"{name}_record.jsonl")
    elif what == "pictures":
        from benchmarks.adaptive import pictures

        pictures.draw_all(RESULTS)
    else:
        from benchmarks.adaptive import gaussian, quadratic

        rows = gaussian.measure() if what == "estimator" else quadratic.measure()
        (RESULTS / f"{what}.json").write_text(json.dumps(rows, indent=1) + "\n")
        print(*rows, sep="\n")


if __name__ == "__main__":
    main()
