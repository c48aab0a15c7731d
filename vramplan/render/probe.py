"""Measured runs for a terminal: probes beside their estimates."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vramplan.errors import UnknownNameError
from vramplan.inputs.catalog import find_gpu
from vramplan.measurements.verify import LargestBatch, ProbeRun, VerifiedPlan
from vramplan.memory.measurement import Measured
from vramplan.memory.summarize import PHASES
from vramplan.units import GiB, format_bytes, format_count


def tried(probe_run: ProbeRun) -> RenderableType:
    """`vramplan probe`: one run beside its estimate."""
    run = probe_run.measured
    verdict = Text("ran", style="bold green") if probe_run.fits else Text("ran out of memory", style="bold red")
    batch = f"micro-batch {probe_run.job.micro_batch_size}, accumulation {probe_run.job.gradient_accumulation_steps}: "
    rows: list[RenderableType] = [heading(run), Text(""), Text(batch) + verdict + Text(_where(run))]
    if run.message:
        rows.append(Text(run.message, style="dim"))
    rows.append(Text(""))
    if probe_run.predicted is None and not probe_run.fits:
        return Group(*rows, footer(run))
    return Group(
        *rows, comparison(probe_run), *([Text(""), speed(run)] if run.step_time else []), Text(""), footer(run)
    )


def heading(run: Measured) -> Text:
    """The model, its parameters, and the GPU or host that ran it."""
    text = Text(run.model, style="bold")
    if run.num_parameters:  # not counted if memory ran out before the model was there
        adapters = f"{format_count(run.num_trainable_parameters)} in adapters train"
        trained = "all train" if run.job.method == "full" else adapters
        text.append(f"  {format_count(run.num_parameters)} parameters, {trained}", style="not bold")
    text.append("\n")
    where = run.environment
    if where.device == "cpu":
        text.append(
            f"real steps on the host, every tensor recorded, through the simulated allocator of {run.card}",
            style="not bold",
        )
        if run.job.attention == "sdpa":
            text.append(
                "\nSDPA ran the host's kernels, which keep other tensors than a GPU's; --attention eager is the same"
                " on both. Times are the host's.",
                style="not bold dim",
            )
    else:
        cards = f"{where.ranks} x {where.device}" if where.ranks > 1 else where.device
        text.append(
            f"{cards}, emulated: PyTorch's CUDA code without a GPU" if where.is_emulated else cards, style="not bold"
        )
        if where.cap_bytes is not None:
            text.append(
                f", standing in for {run.card}: PyTorch limited to {format_bytes(where.cap_bytes)}{_kernels(run)}",
                style="not bold",
            )
        elif where.held_by_others_bytes > GiB:
            text.append(
                f", {format_bytes(where.held_by_others_bytes)} held by other processes when it began", style="not bold"
            )
    return text


def _kernels(run: Measured) -> str:
    """Which kernels ran, if they are not those of the GPU that another stood in for."""
    ran = run.environment.compute_capability
    try:
        own = find_gpu(run.card).compute_capability
    except UnknownNameError:  # a GPU that the catalogue lacks
        return ""
    if own == ran:
        return ""
    return f", with the kernels of compute capability {ran} in place of {own}"


def _where(run: Measured) -> str:
    if run.outcome == "oom":
        return f" {run.failed_where}"
    return ", though an evaluation at this batch runs out of memory" if run.failed_phase == "eval" else ""


def comparison(probe_run: ProbeRun) -> Table:
    """Estimate and measurement side by side, with the error of the estimate."""
    run, predicted = probe_run.measured, probe_run.predicted
    table = Table(box=None, padding=(0, 2), header_style="bold", pad_edge=False)
    table.add_column("GiB", no_wrap=True)
    for name in ("estimate", "measured", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    estimated: dict[str, int] = {}
    if predicted is not None:
        estimated = {
            "allocated": predicted.peak_allocated_bytes,
            "reserved": predicted.peak_reserved_bytes,
            "need of the GPU": predicted.device_total_bytes,
            "  outside torch": predicted.device_total_bytes - predicted.peak_reserved_bytes,
            **{f"  {name}, allocated": size for name, size in predicted.phases.items()},
        }
    measured = {
        "allocated": run.peak_allocated_bytes,
        "reserved": run.peak_reserved_bytes,
        "need of the GPU": run.device_total_bytes,
        "  outside torch": run.context_bytes,
        **{f"  {name}, allocated": run.phases[name].allocated_bytes for name in PHASES if name in run.phases},
    }
    for name in estimated or measured:
        size, actual = estimated.get(name), measured.get(name)
        error = f"{size / actual - 1:+.2%}" if size is not None and actual else ""
        figures = ["" if figure is None else f"{figure / GiB:.3f}" for figure in (size, actual)]
        table.add_row(name, *figures, error, style="" if name.startswith(" ") else "bold")
    return table


def speed(run: Measured) -> Text:
    """Seconds of a step, tokens per second, and model FLOPs utilization."""
    time = run.step_time
    assert time is not None
    text = f"{time:.3f} s a step"
    if run.tokens_per_second is not None:
        text += f", {run.tokens_per_second:,.0f} tokens/s on each GPU"
    if run.model_flops_utilization is not None:
        text += f", {run.model_flops_utilization:.0%} of the GPU's dense rate (model FLOPs)"
    if run.job.gradient_accumulation_steps > run.micro_steps_run:
        text += (
            f"; {run.micro_steps_run} of {run.job.gradient_accumulation_steps} micro-steps run, the rest repeat them"
        )
    return Text(text)


def footer(run: Measured) -> Text:
    """Versions of the libraries, CUDA and the driver."""
    where = run.environment
    parts = [f"{name} {number}" for name, number in where.versions.items()]
    parts += [f"CUDA {where.cuda}"] * bool(where.cuda) + [f"driver {where.driver}"] * bool(
        where.driver and not where.is_emulated
    )
    parts += [where.allocator_settings] * bool(where.allocator_settings)
    return Text("Measured with " + ", ".join(parts) + "; random weights and tokens.", style="dim")


def runs(tries: Iterable[ProbeRun]) -> Table:
    """A line for each run."""
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    for name in ("micro", "accum.", "reserved GiB", "measured", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for probe_run in tries:
        estimated = probe_run.predicted.peak_reserved_bytes if probe_run.predicted else None
        measured = probe_run.measured.peak_reserved_bytes
        table.add_row(
            str(probe_run.job.micro_batch_size),
            str(probe_run.job.gradient_accumulation_steps),
            "" if estimated is None else f"{estimated / GiB:.2f}",
            "" if measured is None else f"{measured / GiB:.2f}",
            f"{estimated / measured - 1:+.1%}" if estimated and measured else "",
            Text("ran", style="green")
            if probe_run.fits
            else Text(f"out of memory {probe_run.measured.failed_where}", style="red"),
        )
    return table


def largest(search: LargestBatch) -> RenderableType:
    """`vramplan probe --find-max`."""
    text = Text(f"Largest micro-batch that runs: {search.micro_batch_size}", style="bold")
    if not search.exact:
        text.append("; runs ended before the next larger one was tried, see --max-runs", style="not bold yellow")
    first = search.runs[0].measured
    return Group(heading(first), Text(""), runs(search.runs), Text(""), text, Text(""), footer(first))


def verified(verified: VerifiedPlan) -> RenderableType:
    """What `suggest --probe` adds."""
    first = verified.runs[0].measured
    rows: list[RenderableType] = [Text("Proved by real runs", style="bold"), runs(verified.runs), Text("")]
    if verified.plan is None:
        rows.append(Text("None of the plans ran.", style="bold red"))
    else:
        plan = verified.plan
        text = Text("Use ")
        text.append(
            f"per_device_train_batch_size {plan.micro_batch_size}, "
            f"gradient_accumulation_steps {plan.gradient_accumulation_steps}",
            style="bold",
        )
        emulated = "an emulated " if first.environment.is_emulated else ""
        text.append(f": it ran on {emulated}{first.environment.device}.")
        rows.append(text)
        if verified.proof is not None and verified.proof.measured.step_time:
            rows.append(speed(verified.proof.measured))
    if not verified.settled:
        rows.append(Text("A larger pair may run as well: the runs ended before, see --max-runs.", style="yellow"))
    return Group(*rows, Text(""), footer(first))
