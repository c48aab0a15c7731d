"""`vramplan probe`, `measure` and `accuracy`: what ran for real."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from vramplan.cli import completion
from vramplan.cli.help import BATCH, MODEL, OUTPUT, REAL
from vramplan.cli.options import (
    Accumulation,
    AsJson,
    Device,
    MaxRuns,
    MicroBatch,
    Model,
    Record,
    Timeout,
    Trust,
    batch_of,
    progress,
    with_job_flags,
)
from vramplan.errors import ConfigError
from vramplan.progress import Progress

LATE: list[ConfigError] = []
"""Runs that could not be kept, told of after the answer."""
AsCard = Annotated[
    str | None,
    typer.Option(
        help="A smaller GPU that this one stands in for: PyTorch is limited to its memory.",
        rich_help_panel=MODEL,
        autocompletion=completion.gpu_names,
    ),
]


def bench(
    gpu: str | None,
    device: str | None,
    timeout: float | None,
    record: Path | None,
    trust_remote_code: bool,
    tell: Progress,
    **more: Any,
) -> Any:
    """What runs are made on.

    Raises:
        VramplanError: where there is no such card here.
    """
    from vramplan.measurements import probe as probing
    from vramplan.measurements.subprocess_runner import TIMEOUT_SECONDS

    timeout = TIMEOUT_SECONDS if timeout is None else timeout
    if not 0 < timeout < 1e6:
        raise ConfigError(f"--timeout {timeout:g}: expected seconds above 0")
    settings = {
        "timeout_seconds": timeout,
        "trust_remote_code": trust_remote_code,
        "progress": tell,
        **({} if record is None else {"keep": keeper(record)}),
        **more,
    }
    return probing.bench(gpu, device=device or "cuda", **settings)


def keeper(folder: Path) -> Callable[[Any, Any], None]:
    """Puts each run into the ledger; a disk that is full is told of once the answer has been printed."""

    def keep(measured: Any, history: Any) -> None:
        from vramplan.measurements import ledger

        try:
            ledger.save(folder, measured, history)
        except ConfigError as error:
            LATE.append(error)

    return keep


def complain() -> None:
    """What could not be kept.

    Raises:
        ConfigError: the first of it.
    """
    if LATE:
        raise LATE[0]


def most_runs(given: int | None) -> int:
    """Real runs that one answer may take.

    Raises:
        ConfigError: for none at all.
    """
    from vramplan.measurements.verify import MOST_RUNS

    if given is not None and given < 1:
        raise ConfigError(f"--max-runs {given}: expected 1 or more")
    return given or MOST_RUNS


@with_job_flags
def probe(
    model: Model,
    as_card: AsCard = None,
    micro_batch: MicroBatch = None,
    accumulation: Accumulation = None,
    steps: Annotated[int, typer.Option(help="Optimizer steps to run; the first warms up.", rich_help_panel=REAL)] = 3,
    find_max: Annotated[
        bool, typer.Option("--find-max", help="Find the largest micro-batch that runs.", rich_help_panel=BATCH)
    ] = False,
    max_runs: MaxRuns = None,
    device: Device = None,
    timeout: Timeout = None,
    record: Record = None,
    history: Annotated[
        bool,
        typer.Option("--history", help="With --record: every allocation and free, too.", rich_help_panel=REAL),
    ] = False,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> None:
    """Measure a job on this machine's GPU, with random weights, beside its estimate."""
    from vramplan.measurements import probe as probing
    from vramplan.measurements import subprocess_runner

    if not 1 <= steps <= 1000:
        raise ConfigError(f"--steps {steps}: expected 1 to 1000")
    if history and record is None:
        raise ConfigError("--history needs --record DIR, the folder to put it into")
    if record is not None and steps < 2:
        raise ConfigError("--record needs --steps 2 or more: the first step begins without optimizer states")
    if find_max and subprocess_runner.is_torchrun():
        raise ConfigError("--find-max starts its runs itself, which torchrun does not allow; run it without torchrun")
    given |= batch_of(micro_batch, accumulation)
    runs = most_runs(max_runs)
    with progress() as tell:
        on = bench(as_card, device, timeout, record, trust_remote_code, tell, steps=steps, history=history)
        found: Any
        if find_max:
            found = probing.find_max(model, on=on, most_runs=runs, **given)
        else:
            found = probing.probe(model, on=on, **given)
    if subprocess_runner.is_torchrun() and int(os.environ["RANK"]) and found.fits:
        return  # the first rank speaks for all; one that ran out of memory for itself
    if as_json:
        from vramplan.render import json_output, probe_json

        print(json_output.dumps(probe_json.largest(found) if find_max else probe_json.probe_run(found)))
    else:
        from vramplan.render import probe as measured
        from vramplan.render import terminal

        terminal.print_all(measured.largest(found) if find_max else measured.tried(found))
    complain()
    raise typer.Exit(0 if (found.micro_batch_size if find_max else found.fits) else 1)


def measure(
    out: Annotated[
        Path,
        typer.Option(
            help="Folder of measured runs, a file each; runs that are there are skipped.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ],
    minutes: Annotated[
        float, typer.Option(help="Time for all runs; the most informative come first.", rich_help_panel=REAL)
    ] = 9.0,
    only: Annotated[
        str, typer.Option(help="Runs whose name matches this regular expression.", rich_help_panel=REAL)
    ] = "",
    show: Annotated[
        bool, typer.Option("--list", help="List the runs that are left, and stop.", rich_help_panel=OUTPUT)
    ] = False,
    device: Device = None,
    as_card: AsCard = None,
) -> None:
    """Measure a fixed set of jobs into a folder; run it again until none is left."""
    from vramplan.measurements import measure as campaign
    from vramplan.render import terminal

    if not campaign.LEAST_SECONDS / 60 <= minutes < 1e5:
        raise ConfigError(f"--minutes {minutes:g}: a run takes {campaign.LEAST_SECONDS:g} seconds at least")
    with progress() as tell:
        on = bench(as_card, device, minutes * 60, None, False, tell)
        left = campaign.left(on, out, only)
        if not left:
            terminal.print_all(f"Nothing is left: every run asked for is in {out}.")
        elif show:
            terminal.print_all(*(case.name for case in left))
        if show or not left:
            return
        measured = []
        for line, went in campaign.run(on, out, left, minutes * 60):
            terminal.print_all(line)
            measured.append(went)
    if not any(measured):
        raise typer.Exit(1)


def accuracy(
    ledger: Annotated[
        Path | None,
        typer.Option(help="Folder of measured runs (tests/measured, if it exists).", rich_help_panel=REAL),
    ] = None,
    published: Annotated[
        Path | None, typer.Option(help="File of runs that others have published.", rich_help_panel=REAL)
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            help="Estimators to compare: analytic, trace, or both with a comma.",
            rich_help_panel=MODEL,
            autocompletion=completion.one_of("analytic", "trace"),
        ),
    ] = "analytic",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.", rich_help_panel=OUTPUT)] = False,
    as_json: AsJson = False,
) -> None:
    """Compare estimates with measured runs."""
    from vramplan.measurements import accuracy as held

    usual = Path("tests/measured")
    if ledger is None and (published is None or usual.is_dir()):
        ledger = usual
    with progress() as tell:
        found = held.compare(ledger, published, tuple(by.split(",")), tell)
    if as_json:
        from vramplan.render import json_output, probe_json

        print(json_output.dumps(probe_json.accuracy(found)))
    else:
        from vramplan.render import probe as measured
        from vramplan.render import terminal

        print(measured.markdown(found)) if markdown else terminal.print_all(measured.accuracy(found))
