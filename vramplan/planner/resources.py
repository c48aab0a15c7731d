"""A plan's GPUs as the resources that SkyPilot and dstack ask for: they rent GPUs, and train nothing themselves.

Formats: SkyPilot's docs/source/reference/yaml-spec.rst (resources.accelerators, num_nodes), and dstack's
mkdocs/docs/concepts/tasks.md (resources.gpu, nodes) and src/dstack/_internal/core/models/profiles.py (max_price, of an
instance per hour in dollars). Names of GPUs are data, in launchers.json.
"""

from __future__ import annotations

import json
from functools import cache
from math import floor
from pathlib import Path
from typing import Any, NamedTuple

from vramplan.errors import UnknownNameError, UnsupportedError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.prices import USD

LAUNCHERS = ("skypilot", "dstack")
"""What `--for` takes besides training frameworks."""
_FILE = Path(__file__).with_name("launchers.json")


class Limit(NamedTuple):
    """The highest price of all machines together for an hour."""

    per_hour: float
    currency: str


class Resources(NamedTuple):
    """A block of YAML, and what it cannot say."""

    text: str
    notes: list[str]


@cache
def _data() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(_FILE.read_bytes())
    return content


def resources(launcher: str, gpu: Gpu, num_gpus: int, num_nodes: int = 1, max_price: Limit | None = None) -> Resources:
    """The GPUs of a plan as a block to paste into the launcher's YAML; dstack's has the limit of the price too.

    Raises:
        UnknownNameError: for an unknown launcher.
        UnsupportedError: for a GPU that the launcher has no name for.
    """
    if launcher not in LAUNCHERS:
        raise UnknownNameError("launcher", launcher, LAUNCHERS, f"known: {', '.join(LAUNCHERS)}")
    known, names = _data()[launcher], _names(launcher, gpu)
    per_node = num_gpus // num_nodes
    shared = [name for name in names if name in known["shared_names"]]
    notes = [f"{launcher} calls every form of the {name} by this name, PCIe and SXM" for name in shared]
    if launcher == "skypilot":
        unsaid = "" if max_price is None else "SkyPilot's block leaves the limit of the price out"
        text = _skypilot(names, per_node, num_nodes)
    else:
        in_dollars = max_price is not None and max_price.currency == USD
        unsaid = "" if max_price is None or in_dollars else "dstack's max_price is in dollars and left out"
        text = _dstack(names, per_node, num_nodes, max_price.per_hour if max_price and in_dollars else None)
    return Resources(text, [*notes, *([unsaid] if unsaid else [])])


def dstack_spec(gpu: Gpu, num_gpus: int) -> str:
    """The GPUs of one machine as ``dstack apply --gpu`` takes them (GPUSpec in dstack's core/models/resources.py).

    Raises:
        UnsupportedError: for a GPU that dstack has no name for.
    """
    name, memory = _names("dstack", gpu)
    return f"{name}:{memory}GB:{num_gpus}"


def _names(launcher: str, gpu: Gpu) -> list[Any]:
    names: list[Any] | None = _data()[launcher]["gpus"].get(gpu.name)
    if names is None:
        raise UnsupportedError(f"{setting('for_framework', launcher)}: {launcher} has no name for {gpu.title}")
    return names


def _skypilot(names: list[str], per_node: int, num_nodes: int) -> str:
    accelerators = ", ".join(f"{name}: {per_node}" for name in names)
    return f"num_nodes: {num_nodes}\nresources:\n  accelerators: {{{accelerators}}}\n"


def _dstack(name_and_memory: list[Any], per_node: int, num_nodes: int, max_dollars: float | None) -> str:
    name, memory = name_and_memory
    nodes = f"nodes: {num_nodes}\n" if num_nodes > 1 else ""
    # rounded down to cents, apart from the error of the division
    limit = "" if max_dollars is None else f"max_price: {floor(round(max_dollars / num_nodes * 100, 6)) / 100:.2f}\n"
    return f"{nodes}{limit}resources:\n  gpu:\n    name: [{name}]\n    memory: {memory}GB\n    count: {per_node}\n"
