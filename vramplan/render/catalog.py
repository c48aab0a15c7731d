"""`vramplan models` and `vramplan gpus` for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import ModelSpec
from vramplan.render.figures import free_gib
from vramplan.render.terminal import Answer, Screen, simple_table
from vramplan.units import format_count


def models(specs: Sequence[ModelSpec]) -> Answer:
    """Every model with its parameters and architecture, its other names below it."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        if screen.narrow:
            rows: list[RenderableType] = []
            for spec in specs:
                count = f"{format_count(spec.num_parameters)}, " if spec.num_parameters else ""
                rows += [Text(spec.name), Text(f"    {count}{spec.model_type}", "dim")]
                rows += [Text(f"  = {alias}", "dim") for alias in spec.aliases]
            return rows
        table = simple_table("model", ("parameters", "right"), "architecture")
        for spec in specs:
            table.add_row(spec.name, format_count(spec.num_parameters) if spec.num_parameters else "", spec.model_type)
            for alias in spec.aliases:
                table.add_row(f"  = {alias}", style="dim")
        return [table]

    return Answer(lay_out)


def gpus(all_gpus: Sequence[Gpu]) -> Answer:
    """Every GPU with its memory, bandwidth, speed and compute capability."""

    def lay_out(screen: Screen) -> list[RenderableType]:
        if screen.narrow:
            rows: list[RenderableType] = []
            for gpu in all_gpus:
                figures = [f"{name} {figure}" for name, figure in zip(FIGURES, _figures(gpu), strict=True) if figure]
                rows += [screen.text(f"{gpu.name}: {gpu.title}"), Text(f"    {', '.join(figures)}", "dim")]
            return rows
        table = simple_table("name", "GPU", *((name, "right") for name in FIGURES))
        for gpu in all_gpus:
            table.add_row(gpu.name, screen.text(gpu.title), *_figures(gpu))
        return [table]

    return Answer(lay_out)


FIGURES = ("CUDA GiB", "GB/s", "bf16 TF/s", "cc")


def _figures(gpu: Gpu) -> tuple[str, ...]:
    """Text of each figure; nothing for one that is not known."""
    bf16 = gpu.flops_per_second.get("bf16")
    return (
        free_gib(gpu.cuda_total_bytes),
        f"{gpu.bandwidth_bytes_per_second / 1e9:,.0f}",
        f"{bf16 / 1e12:,.0f}" if bf16 else "",
        gpu.compute_capability or "",
    )


__all__ = ["gpus", "models"]
