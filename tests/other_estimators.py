"""What other estimators say of published runs: ``python -m tests.other_estimators [FOLDER]``.

Makes a virtual environment in FOLDER (a temporary one by default), installs each estimator from the package index, asks
all of them, and writes ``tests/other_estimators.json``: facts with versions, which ``python -m tests.learn`` shows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from tests.accuracy_page import OTHERS, PUBLISHED
from tests.helpers import ROOT
from tests.learn import counts
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.load import load_named_model
from vramplan.measurements.accuracy import METRICS
from vramplan.measurements.published import Published, load_published
from vramplan.version import __version__

CHILD = ROOT / "tests" / "other_estimators_child.py"
PACKAGES = ("fitcheck-llm", "fitscout", "canifinetune", "torch-preflight", "accelerate", "deepspeed")
FIELDS = (
    "method", "quantize", "double_quant", "lora_rank", "lora_targets", "dtype", "optimizer", "micro_batch_size",
    "gradient_accumulation_steps", "sequence_length", "checkpointing", "attention", "loss", "num_gpus", "strategy",
    "offload",
)  # fmt: skip
"""Settings of a job that any of them knows."""


def question(run: Published) -> dict[str, Any]:
    """A published run as the child reads it."""
    spec, predicted = load_named_model(run.model), run.estimate()
    config = {"model_type": spec.model_type, **spec.config}
    hidden = config["hidden_size"]
    widest = max(config["vocab_size"], config.get("intermediate_size") or 4 * hidden)
    return {
        "id": run.id,
        "model": run.model,
        "config": config,
        "parameters": predicted.num_parameters,
        "trainable": predicted.num_trainable_parameters,
        "largest_layer": widest * hidden,
        "gpu_mib": find_gpu(run.gpu).total_mib,
        "job": {name: getattr(predicted.job, name) for name in FIELDS},
        "measured_bytes": run.measured_bytes,
        "metric": run.metric,
        "vramplan": getattr(predicted, METRICS[run.metric]),
    }


def environment(folder: Path) -> Path:
    """The interpreter of a virtual environment with every estimator; one that is there is used as it is."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "setuptools", "wheel", "torch"], check=True)
        subprocess.run([*install, "--no-build-isolation", *PACKAGES], check=True)  # DeepSpeed is built beside torch
    return python


def ask(python: Path, questions: list[dict[str, Any]]) -> dict[str, Any]:
    """The answers of every estimator, and their versions."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(questions, file)
        file.flush()
        done = subprocess.run([str(python), str(CHILD), file.name], check=True, stdout=subprocess.PIPE, text=True)
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def main(folder: Path) -> None:
    """Write the facts."""
    questions = [question(run) for run in load_published(PUBLISHED) if counts(run)]
    found = ask(environment(folder), questions)
    runs = []
    refusals: dict[str, dict[str, int]] = {name: {} for name in found["versions"]}
    for one in questions:
        answers = found["answers"][one["id"]]
        for name, answer in answers.items():
            if isinstance(answer, str):
                refusals[name][answer] = refusals[name].get(answer, 0) + 1
        estimates = {name: None if isinstance(answer, str) else answer for name, answer in answers.items()}
        runs.append({
            "id": one["id"], "metric": one["metric"], "measured_bytes": one["measured_bytes"],
            "estimates": {"vramplan": one["vramplan"], **estimates},
        })  # fmt: skip
    facts = {"versions": {"vramplan": __version__, **found["versions"]}, "refusals": refusals, "runs": runs}
    OTHERS.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
