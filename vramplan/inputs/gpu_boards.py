"""What a GPU's name as typed leaves open: boards of one name with several sizes, a number of GPUs in the name."""

from __future__ import annotations

import re

from vramplan.inputs.catalog import all_gpus, plain_gpu_name
from vramplan.inputs.gpu import Gpu
from vramplan.units import GiB

_OF_A_BOARD = re.compile(r"(?:-(?:\d+gb|pcie|sxm\d?|nvl))+$")
"""What the name of one board has behind that of all: its size, its form."""
_TIMES = re.compile(
    r"(?P<count>[1-9]\d{0,2})\s?[x×*]\s?(?P<gpu>\S.*)|(?P<gpu_first>\S.*?)\s?[x×*]\s?(?P<times>[1-9]\d{0,2})"
)


def board_note(name: str, gpu: Gpu) -> str:
    """Which board a name without a size was taken for; empty if boards of that name have one size.

    >>> from vramplan.inputs.catalog import find_gpu
    >>> board_note("A100", find_gpu("A100")), board_note("a100-80gb", find_gpu("a100-80gb"))
    ('A100: the 40 GB board was taken; a100-80gb is the other', '')
    """
    typed = {plain_gpu_name(name), f"rtx{plain_gpu_name(name)}"}
    names: dict[int, set[str]] = {}
    for board in all_gpus():
        if plain_gpu_name(_OF_A_BOARD.sub("", board.name)) in typed:
            names.setdefault(_size(board), set()).update((board.name, *board.aliases))
    others = [_shortest(names[size]) for size in sorted(names) if size != _size(gpu)]
    if not others:
        return ""
    verb = "is the other" if len(others) == 1 else "are others"
    return f"{name}: the {_size(gpu)} GB board was taken; {' and '.join(others)} {verb}"


def counted_gpus(name: str) -> tuple[int, str] | None:
    """The number and the name in ``2x4090`` or ``4090x2``; None if it has no such form."""
    match = _TIMES.fullmatch(name.strip().lower())
    if match is None:
        return None
    return int(match["count"] or match["times"]), match["gpu"] or match["gpu_first"]


def _size(board: Gpu) -> int:
    """GB that it is sold with."""
    return round(board.driver_total_bytes / GiB)


def _shortest(names: set[str]) -> str:
    """The shortest short name, one that says the size if there is any."""
    short = [name for name in names if name == name.lower() and " " not in name]
    return min([name for name in short if name.endswith("gb")] or short, key=lambda name: (len(name), name))


__all__ = ["board_note", "counted_gpus"]
