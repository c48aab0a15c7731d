"""Campaigns on rented GPUs: task files of SkyPilot and dstack that fill one ledger from several kinds of GPU.

The ledger is a dataset on the Hugging Face Hub, which every cloud can reach: a task downloads it, measures what is
left, and uploads it again. Formats: SkyPilot 0.14's sky/utils/schemas.py (get_task_schema) and its pipelines of several
documents (docs/source/examples/managed-jobs.rst); dstack 0.22's core/models/configurations.py (TaskConfiguration).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from vramplan.errors import ConfigError, UnknownNameError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.planner.resources import LAUNCHERS, dstack_spec, resources
from vramplan.version import __version__

DATASET = "USER/DATASET"
"""What stands for the ledger's name on the Hub in the commands of a file."""
START_MINUTES = 60
"""A dstack task may take so much longer than its runs: installing torch, downloading and uploading the ledger."""


class TaskFile(NamedTuple):
    """A file to launch."""

    text: str
    notes: list[str]
    """What it cannot say."""


def task_file(launcher: str, gpus: Sequence[Gpu], num_gpus: int, minutes: float, only: str, folder: Path) -> TaskFile:
    """The file that measures on machines with `num_gpus` of each kind of GPU, for `minutes` on each.

    Its first lines are commands that launch it and that download the ledger into `folder`.

    Raises:
        UnknownNameError: for an unknown launcher.
        ConfigError: for a GPU that is not NVIDIA's.
        UnsupportedError: for a GPU that the launcher has no name for.
    """
    if launcher not in LAUNCHERS:
        raise UnknownNameError("launcher", launcher, LAUNCHERS, f"known: {', '.join(LAUNCHERS)}")
    for gpu in gpus:
        if gpu.vendor != "NVIDIA":
            raise ConfigError(f"{setting('gpus', gpu.name)}: only NVIDIA GPUs are measured")
    blocks = [resources(launcher, gpu, num_gpus) for gpu in gpus]
    notes = list(dict.fromkeys(note for block in blocks for note in block.notes))
    packages = f'"vramplan[probe]=={__version__}"' + " deepspeed" * (num_gpus > 1)
    steps = _steps(minutes, only)
    if launcher == "skypilot":
        launch = [f"sky jobs launch measure.yaml --env LEDGER={DATASET} --secret HF_TOKEN"]
        text = _skypilot({gpu.name: block.text for gpu, block in zip(gpus, blocks, strict=True)}, packages, steps)
    else:
        launch = [
            f"dstack apply -f measure.dstack.yml -n measure-{gpu.name} --gpu {dstack_spec(gpu, num_gpus)}"
            f" -e LEDGER={DATASET} -y -d"
            for gpu in gpus
        ]
        text = _dstack(blocks[0].text, packages, steps, ceil(minutes) + START_MINUTES)
    return TaskFile(_comments(launch, folder) + text, notes)


def _steps(minutes: float, only: str) -> list[str]:
    """Commands of a shell; a kind of GPU on which no run succeeds does not lose what is in the ledger."""
    pattern = f" --only {quote(only)}" if only else ""
    return [
        'hf download "$LEDGER" --repo-type dataset --local-dir measured || mkdir -p measured',
        f'vramplan measure --out measured --minutes {minutes:g}{pattern} || echo "no run was measured"',
        'hf upload "$LEDGER" measured . --repo-type dataset --private',
    ]


def _comments(launch: Sequence[str], folder: Path) -> str:
    lines = [
        "Measures on rented GPUs. The ledger is a private dataset on the Hugging Face Hub; the first task creates it.",
        "  export HF_TOKEN=...    # a token that may write",
        *(f"  {line}" for line in launch),
        "Afterwards, and as often as the file is launched again to measure what is left:",
        f"  hf download {DATASET} --repo-type dataset --local-dir {quote(str(folder))}",
    ]
    return "".join(f"# {line}\n" for line in lines)


def _skypilot(blocks: Mapping[str, str], packages: str, steps: Sequence[str]) -> str:
    """A pipeline: a task for each block of resources, one after the other."""
    run = "".join(f"  {step}\n" for step in steps)
    tasks = [
        f"name: {name}\n{block}envs:\n  LEDGER: null\nsecrets:\n  HF_TOKEN: null\n"
        f"setup: |\n  pip install {packages}\nrun: |\n{run}"
        for name, block in blocks.items()
    ]
    return "---\n".join(["name: vramplan-measure\n", *tasks])


def _dstack(block: str, packages: str, steps: Sequence[str], max_minutes: int) -> str:
    """One task, which is applied once for each kind of GPU."""
    run = "".join(f"    {step}\n" for step in steps)
    return (
        'type: task\nname: measure\npython: "3.12"\nenv:\n  - HF_TOKEN\n  - LEDGER\n'
        f"commands:\n  - uv pip install {packages}\n  - |\n{run}max_duration: {max_minutes}m\n{block}"
    )
