"""Host memory in the answer of `vramplan estimate`: a line if it is much, and all of it under `--verbose`."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from vramplan.inputs.job import Job
from vramplan.memory.host import MUCH_BYTES, HostMemory
from vramplan.render.terminal import Screen, hanging
from vramplan.units import counted, format_bytes, format_count

PHASES = {"load": "loading", "train": "training", "save": "saving", "merge": "merging adapters"}


def host_line(screen: Screen, host: HostMemory, job: Job) -> list[RenderableType]:
    """One line if the host is used to offload, or likely needs more than machines have."""
    if job.offload == "none" and host.peak_bytes <= MUCH_BYTES:
        return []
    return [Text(""), screen.text(f"{host_words(host)}; -v lists it")]


def host_words(host: HostMemory) -> str:
    """The memory that each phase needs."""
    return f"Host memory{_node(host)}: {_sizes(host)}"


def host_details(screen: Screen, host: HostMemory) -> list[RenderableType]:
    """Every kind of tensor, and what is not known."""
    texts = [
        f"{PHASES[one.phase]}: {format_bytes(one.num_bytes)}{', pinned' if one.is_pinned else ''}: {one.what}"
        f" ({f'{one.copies} × ' if one.copies > 1 else ''}{format_count(one.count)} elements; {one.source})"
        for one in host.tensors
    ]
    title = Text.assemble((f"Host memory{_node(host)}", "bold"), (f", {_sizes(host)}", "dim"))
    return [Text(""), title, hanging(screen, [(text, "") for text in (*texts, *host.notes)])]


def _node(host: HostMemory) -> str:
    return f" of a node with {counted(host.gpus_per_node, 'GPU')}"


def _sizes(host: HostMemory) -> str:
    """The phases that need some, in words."""
    sizes = [f"{format_bytes(size)} for {PHASES[phase]}" for phase, size in host.phase_bytes().items() if size]
    return ", ".join(sizes) or "little"
