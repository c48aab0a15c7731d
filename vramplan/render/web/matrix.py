"""Which GPU and which micro-batch: the need of each, to choose from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from vramplan.inputs.gpu import Gpu
from vramplan.planner.search_result import WITHOUT_MARGIN, Search
from vramplan.render.figures import free_gib, gib

MOST_COLUMNS = 6


def micro_batches(search: Search) -> list[int]:
    """Micro-batches that meet the global batch, the smallest first."""
    sizes = {plan.micro_batch_size for plan in search.plans} | {pair.micro_batch_size for pair in search.rejected}
    return sorted(sizes)[:MOST_COLUMNS]


def matrix(rows: Iterable[tuple[Gpu, Search | str]], columns: Sequence[int], shown: tuple[str, int]) -> str:
    """The table as HTML: a row for each GPU, a column for each micro-batch, a button for each pair that fits.

    Args:
        rows: each GPU with its search, or the reason why there is none.
        columns: micro-batches.
        shown: name of the GPU and micro-batch that the page shows.
    """
    body = "".join(row(gpu, found, columns, shown) for gpu, found in rows)
    return table(columns, body)


def table(columns: Sequence[int] = (), body: str = "") -> str:
    """The table with these rows."""
    head = "".join(f'<th scope="col">{size}</th>' for size in columns)
    return (
        '<h2>Which GPU, which micro-batch <span class="cap">GiB needed</span></h2><table class="matrix"><thead><tr>'
        f'<th scope="col">GPU</th>{head}</tr></thead><tbody>{body}</tbody></table>'
        '<p class="key"><span><i class="fit"></i>fits</span><span><i class="near"></i>≈ only without margin</span>'
        "<span><i></i>does not fit</span></p>"
    )


def row(gpu: Gpu, found: Search | str, columns: Sequence[int], shown: tuple[str, int] = ("", 0)) -> str:
    """A GPU's row of the table."""
    title = f'<th scope="row">{escape(gpu.title)} <small>{free_gib(gpu.usable_bytes)}</small></th>'
    if isinstance(found, str):
        return f'<tr>{title}<td class="none" colspan="{len(columns)}" title="{escape(found)}">cannot run it</td></tr>'
    return f"<tr>{title}{''.join(_cell(gpu, found, size, shown == (gpu.name, size)) for size in columns)}</tr>"


def _cell(gpu: Gpu, found: Search, size: int, is_shown: bool) -> str:
    plan = next((plan for plan in found.plans if plan.micro_batch_size == size), None)
    pressed = f' aria-pressed="{str(is_shown).lower()}" data-gpu="{escape(gpu.name)}" data-micro="{size}"'
    if plan is not None:
        need = gib(plan.estimate.device_total_bytes)
        name = escape(f"{gpu.title}, micro-batch {size}: fits, {need} GiB")
        button = f'<button type="button"{pressed} aria-label="{name}">{need}</button>'
        return f'<td class="fit" data-size="{size}">{button}</td>'
    pair = next((pair for pair in found.rejected if pair.micro_batch_size == size), None)
    if pair is None:
        return f'<td data-size="{size}"></td>'
    need = "no" if pair.device_total_bytes is None else gib(pair.device_total_bytes)
    if pair.reason == WITHOUT_MARGIN:
        return f'<td class="near" data-size="{size}" title="fits only without margin">≈{need}</td>'
    return f'<td data-size="{size}" title="does not fit">{need}</td>'
