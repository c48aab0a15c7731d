"""The lines of `vramplan estimate --generate-tokens`: the model loaded, and generating, on one GPU."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from vramplan.memory.generation import Generation
from vramplan.render.figures import gib, room_gib
from vramplan.render.terminal import LOOKS, Screen, hanging
from vramplan.render.verdict import outcome_of
from vramplan.units import counted, format_bytes


def generation_lines(screen: Screen, found: Generation) -> list[RenderableType]:
    """Loaded, and at the peak of generating, with the verdict."""
    sign, words, colour = LOOKS[outcome_of(found.fits, found.fits_without_margin)]
    verdict = words.lower() if screen.ascii_only else f"{sign} {words.lower()}"
    room = f", headroom {room_gib(found.capacity_bytes, found.device_total_bytes)} GiB" if found.fits else ""
    merged = ""
    if found.merged_weight_bytes is not None:
        merged = f"; adapters merged: {format_bytes(found.weight_bytes - found.merged_weight_bytes)} less"
    if found.dense_weight_bytes is not None:
        merged += f"; merged without quantization: {gib(found.dense_weight_bytes)} GiB of weights"
    prompts = f"{counted(found.batch, 'prompt')} of {counted(found.prompt_tokens, 'token')}"
    phase = "prefill" if found.prefill_bytes >= found.decode_bytes else "decoding"
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("  loaded", screen.text(f"{gib(found.loaded_bytes)} GiB{merged}"))
    table.add_row(
        "  generating",
        screen.text(
            f"{gib(found.device_total_bytes)} GiB for {counted(found.new_tokens, 'token')} after {prompts}, peak in"
            f" {phase}; KV cache {format_bytes(found.cache_bytes)}"
        ),
    )
    table.add_row("", screen.text(f"{verdict}{room}", f"bold {colour}"))
    return [Text(""), Text.assemble(("After training", "bold"), (", on one GPU", "dim")), table]


def generation_details(screen: Screen, found: Generation) -> list[RenderableType]:
    """What -v adds."""
    texts = [
        f"weights {format_bytes(found.weight_bytes)}; allocated at the peak of prefill"
        f" {format_bytes(found.prefill_bytes)}, of decoding {format_bytes(found.decode_bytes)}; reserved"
        f" {format_bytes(found.peak_reserved_bytes)}",
        f"KV cache at the end: {found.cache_text}",
        *found.assumptions,
    ]
    return [Text(""), Text("Generating", "bold"), hanging(screen, [(text, "") for text in texts])]


__all__ = ["generation_details", "generation_lines"]
