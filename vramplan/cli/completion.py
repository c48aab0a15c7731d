"""Values that the shell completes: GPUs, shipped models, and the values of a job's settings.

Nothing is imported before a value is asked for, so that a command that runs does not pay for it.
"""

from collections.abc import Callable, Iterable
from typing import Any, get_args

Completion = Callable[[str], list[tuple[str, str]]]
"""(what has been typed) -> (value, its help) of each that begins so."""


def _matching(typed: str, values: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Values that begin, in any case, with what was typed behind the last comma."""
    last = typed.rpartition(",")[2]
    return [(f"{typed}{value[len(last) :]}", text) for value, text in values if value.lower().startswith(last.lower())]


def gpu_names(incomplete: str) -> list[tuple[str, str]]:
    """GPUs of the catalogue, with their titles; those of the RTX series by their numbers too."""
    from vramplan.inputs.catalog import all_gpus

    gpus = [(gpu.name, gpu.title) for gpu in all_gpus()]
    numbers = [
        (name.removeprefix("rtx"), title) for name, title in gpus if name[:3] == "rtx" and name[3:4].isdecimal()
    ]  # 4090
    return _matching(incomplete, [("auto", "the GPU of this machine"), *gpus, *numbers])


def model_names(incomplete: str) -> list[tuple[str, str]]:
    """Shipped models, with or without their owner."""
    from vramplan.inputs.catalog import model_names as shipped

    names = [*shipped()]
    return _matching(incomplete, [(name, "") for name in [*names, *(name.rpartition("/")[2] for name in names)]])


def frameworks(incomplete: str) -> list[tuple[str, str]]:
    """Training frameworks whose configurations are read."""
    from vramplan.frameworks.registry import FRAMEWORKS

    return _matching(incomplete, [(name, "") for name in sorted(FRAMEWORKS)])


def frameworks_and_launchers(incomplete: str) -> list[tuple[str, str]]:
    """The same, and what rents GPUs."""
    from vramplan.planner.resources import LAUNCHERS

    return [*frameworks(incomplete), *_matching(incomplete, [(name, "") for name in LAUNCHERS])]


def optimizers(incomplete: str) -> list[tuple[str, str]]:
    """Optimizers by transformers' names."""
    from vramplan.memory.optimizers import ALIASES, OPTIMIZERS

    return _matching(incomplete, [(name, "") for name in sorted({*OPTIMIZERS, *ALIASES})])


def one_of(*values: str) -> Completion:
    """Fixed values."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        return _matching(incomplete, [(value, "") for value in values])

    return complete


def job_values(field: str, *more: str) -> Completion:
    """Values that a field of the job may have, and some that stand for others."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        from vramplan.inputs.job import Job

        return _matching(incomplete, [(value, "") for value in [*_literals(Job.model_fields[field].annotation), *more]])

    return complete


def _literals(annotation: Any) -> list[str]:
    """Strings of a Literal, also within a union."""
    parts = get_args(annotation)
    return [text for part in parts for text in ([part] if isinstance(part, str) else _literals(part))]
