"""The commands: their groups, where they are defined, and examples. A command is imported if it is named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from vramplan.cli.panels import COMPARE, LISTS, MEASURE, PLAN
from vramplan.visible import visible


class Command(NamedTuple):
    """A command by its name, whose last word is its function's too."""

    panel: str
    """Its group on the help page."""
    module: str
    """The file of this folder that defines it."""
    examples: str
    """One a line, for the end of its help page."""


COMMANDS = {
    "suggest": Command(
        PLAN,
        "suggest",
        """\
vramplan suggest Qwen/Qwen2.5-7B-Instruct --gpu rtx4090 --global-batch 16
vramplan suggest llama-3.1-8b --gpu h100,l40s --num-gpus auto --method full --global-batch 64
vramplan suggest qwen2.5-7b --gpu rtx4090 --global-batch 16 --for llamafactory""",
    ),
    "estimate": Command(
        PLAN,
        "estimate",
        """\
vramplan estimate qwen2.5-7b --gpu rtx4090 --micro-batch 2
vramplan estimate qwen2.5-7b --gpu a100-80gb --method full --explain
vramplan estimate gemma-3-4b-it --gpu rtx4090 --images 1 --plot step.svg""",
    ),
    "check": Command(
        PLAN,
        "check",
        """\
vramplan check train.yaml --gpu rtx4090
vramplan check train.yaml --gpu rtx4090 --fix --write
vramplan check --gpu a100-80gb --num-gpus 4 -- swift sft --model Qwen/Qwen2.5-7B-Instruct""",
    ),
    "oom": Command(
        PLAN,
        "oom",
        """\
vramplan oom train.log
vramplan oom train.log --config train.yaml""",
    ),
    "images": Command(
        PLAN,
        "images",
        """\
vramplan images qwen2.5-vl-7b-instruct --gpu rtx4090
vramplan images internvl3-8b --gpu a100-40gb --sizes 448x448,1344x896""",
    ),
    "adapt plan": Command(
        PLAN,
        "adapt",
        """\
vramplan adapt plan qwen2.5-7b --gpu rtx4090 --global-batch 8 --largest-global-batch 128
vramplan adapt plan llama-3.1-8b --gpu a100-80gb --num-gpus 4 --strategy fsdp --method full --global-batch 32""",
    ),
    "adapt simulate": Command(
        PLAN,
        "adapt",
        """\
vramplan adapt simulate run.jsonl
vramplan adapt simulate run.jsonl --policy noise-scale,seesaw --global-batch 8 --plot run.svg
vramplan adapt simulate run.jsonl --policy schedule --schedule 0:8,4000:16,8000:32""",
    ),
    "compare": Command(
        COMPARE,
        "compare",
        """\
vramplan compare qwen2.5-7b llama-3.1-8b --gpu rtx4090
vramplan compare qwen2.5-7b --gpu rtx4090,a100-40gb
vramplan compare before.yaml after.yaml --gpu rtx4090""",
    ),
    "report": Command(
        COMPARE,
        "report",
        """\
vramplan report qwen2.5-7b --gpu rtx4090 --out report.html
vramplan report qwen2.5-7b --gpu rtx4090 --gpus l40s,h100 --out report.html""",
    ),
    "site": Command(COMPARE, "site", "vramplan site --out public"),
    "table": Command(
        COMPARE,
        "table",
        """\
vramplan table --models 'qwen2.5-*' --gpus rtx4090,h100
vramplan table --models qwen2.5-7b --gpus rtx4090 --methods qlora,lora,full --seq-lens 2048,8192
vramplan table --check README.md""",
    ),
    "probe": Command(
        MEASURE,
        "probe",
        """\
vramplan probe qwen2.5-0.5b --micro-batch 2
vramplan probe qwen2.5-0.5b --find-max
vramplan probe llama-3.1-8b --device emulated --as-card a100-80gb""",
    ),
    "measure": Command(
        MEASURE,
        "measure",
        """\
vramplan measure --out measured --minutes 30
vramplan measure --out measured --on slurm --jobs 4 --slurm partition=gpu
vramplan measure --out measured --for skypilot --gpus rtx4090,h100""",
    ),
    "emulate": Command(
        MEASURE,
        "emulate",
        """\
vramplan emulate --install
vramplan emulate --gpu rtx4090 -- python train.py
vramplan emulate --gpu rtx4090 --num-gpus 2 -- torchrun --nproc-per-node 2 train.py""",
    ),
    "accuracy": Command(MEASURE, "accuracy", "vramplan accuracy --ledger measured"),
    "models": Command(LISTS, "catalog", "vramplan models\nvramplan models qwen3"),
    "gpus": Command(LISTS, "catalog", "vramplan gpus\nvramplan gpus 4090 --json"),
}
"""In the order of the help page. A name of two words is a command of a group."""
GROUPS = {"adapt": (PLAN, "Plan a batch that grows during the run, and see what policies would make of it.")}
"""The first words of those: their group on the help page, and what they are for."""


def command_of(words: Sequence[str]) -> str:
    """The command that a line begins with; empty if it names none."""
    names = (" ".join(words[:count]) for count in (1, 2))
    return next((name for name in names if name in COMMANDS), "")


def function_of(name: str) -> Callable[..., int | None]:
    """A command's function, which returns its exit code or None for 0."""
    function: Callable[..., int | None] = getattr(
        import_module(f"vramplan.cli.{COMMANDS[name].module}"), name.rpartition(" ")[2]
    )
    return function


def call(function: Callable[..., int | None], values: Mapping[str, Any]) -> int | None:
    """Run a command; with --verbose, standard error says if results could not be kept, and why."""
    code = function(**values)
    cache = sys.modules.get("vramplan.disk_cache")  # if it is not loaded, nothing was to be kept
    if values.get("verbose") and cache is not None and cache.notice() is not None:
        print(f"vramplan: {visible(cache.notice())}", file=sys.stderr)
    return code
