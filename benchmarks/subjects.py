"""What is measured, and what each is to cost at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

IMPORTS = "import typer, rich, rich.table, pydantic"
"""The unit of times: what a command line of these libraries costs before it does anything."""


class Target(NamedTuple):
    """What something is to cost at most."""

    value: float
    unit: str
    """x: the imports above; s: seconds; min: minutes; MiB; x16: times the same with a global batch of 16."""

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit}"


class Subject(NamedTuple):
    """A thing to measure."""

    name: str
    """How the table calls it."""
    command: Sequence[str] = ()
    """Arguments of vramplan, or Python code after ``-c``."""
    target: Target | None = None
    memory: Target | None = None
    rounds: int = 9
    """How often it runs; the median counts."""
    primed: bool = False
    """Whether results of an earlier run are kept on disk."""
    warm_up: str = ""
    """For a search inside a process: Python code that runs before the clock starts."""


SUGGEST = ("suggest", "qwen2.5-7b", "--gpu", "rtx4090", "--global-batch", "16")
LOADED = "vramplan.suggest('pythia-70m', 'rtx4090', 16)"
"""Loads every module that a search needs."""


def _search(model: str, gpu: str, batch: int, **job: object) -> str:
    return f"vramplan.suggest({model!r}, {gpu!r}, {batch}, **{job!r})"


COMMANDS = (
    Subject("vramplan --version", ("--version",)),
    Subject("vramplan gpus rtx", ("gpus", "rtx"), Target(1.5, "x")),
    Subject("vramplan suggest, 7B LoRA, the first time", (*SUGGEST, "--no-cache"), Target(2, "x")),
    Subject("vramplan suggest, 7B LoRA, again", SUGGEST, Target(1.3, "x"), primed=True),
)
REPORTS = tuple(
    Subject(
        f"vramplan report, {size}",
        ("report", model, "--gpu", gpu, "--out", "report.html"),
        Target(seconds, "s"),
        rounds=1,
    )
    for size, model, gpu, seconds in (("7B", "qwen2.5-7b", "rtx4090", 5), ("70B", "llama-3.1-70b", "h200", 10))
)
SEVEN = _search("qwen2.5-7b", "rtx4090", 16)
ELSEWHERE = _search("qwen2.5-7b", "a100-80gb", 64)
"""The same job in the same process, with another GPU and batch."""
SEARCHES = (
    Subject("search, 7B LoRA, the first time", (SEVEN,), Target(0.1, "s"), rounds=5, warm_up=LOADED),
    Subject("search, 7B LoRA, on another GPU", (SEVEN,), Target(0.03, "s"), rounds=5, warm_up=ELSEWHERE),
    Subject(
        "search, 70B ZeRO-3 on 8 GPUs",
        (_search("llama-3.1-70b", "h100", 64, num_gpus=8, strategy="zero3"),),
        Target(1, "s"),
        rounds=3,
        warm_up=LOADED,
    ),
    *(
        Subject(
            f"search, 135M, global batch {batch:,}",
            (_search("smollm2-135m", "rtx4090", batch),),
            Target(1, "x16") if batch > 16 else None,
            rounds=3,
            warm_up=LOADED,
        )
        for batch in (16, 1024, 4096)
    ),
    Subject(
        "search, 30B mixture with linear experts",
        (_search("qwen3-30b-a3b", "h200", 16, experts="linear"),),
        Target(3, "s"),
        Target(200, "MiB"),
        rounds=1,
        warm_up=LOADED,
    ),
    Subject(
        "estimate, 7B, lengths 300, 1,200 and 2,048",
        ("vramplan.estimate('qwen2.5-7b', 'rtx4090', lengths=(300, 1200, 2048))",),
        Target(0.3, "s"),
        rounds=3,
        warm_up=LOADED,
    ),
)
