"""`vramplan accuracy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from vramplan.cli.options import AsJson, progress, say
from vramplan.cli.parameters import Option
from vramplan.errors import ConfigError, UnknownNameError

ESTIMATORS = ("analytic", "trace")
LEDGER = Path("tests/measured")
"""Compared if neither a ledger nor published runs are named, and if it exists."""


def accuracy(
    ledger: Annotated[Path | None, Option(help="Folder of measured runs (tests/measured, if it exists).")] = None,
    published: Annotated[Path | None, Option(help="File of runs that others have published.")] = None,
    emulated: Annotated[Path | None, Option(help="File of runs on emulated GPUs.")] = None,
    times: Annotated[Path | None, Option(help="File of training speeds that others have published.")] = None,
    by: Annotated[str, Option(help="Estimators to compare: analytic, trace, or both with a comma.")] = "analytic",
    markdown: Annotated[bool, Option("--markdown", help="Print Markdown.")] = False,
    as_json: AsJson = False,
) -> int:
    """Compare estimates with measured runs."""
    from vramplan.measurements.accuracy import compare

    estimators = tuple(by.split(","))
    for name in estimators:
        if name not in ESTIMATORS:
            raise UnknownNameError("estimator", name, ESTIMATORS, f"known: {', '.join(ESTIMATORS)}")
    if estimators != ("analytic",) and ledger is None and published is None and (times or emulated):
        raise ConfigError("--by is for --ledger and --published; --times and --emulated compare the analytic estimator")
    for name, path, show in (("--times", times, _times), ("--emulated", emulated, _emulated)):
        if path is not None and as_json:
            raise ConfigError(f"{name} with --json is not supported; vramplan.measurements has the rows in Python")
        if path is not None:
            show(path, markdown)
    if (times is not None or emulated is not None) and ledger is None and published is None:
        return 0
    if ledger is None and (published is None or LEDGER.is_dir()):
        ledger = LEDGER
    with progress() as tell:
        comparison = compare(ledger, published, estimators, tell)
    if as_json:
        from vramplan.render import json_output, probe_json

        say(json_output.dumps(probe_json.accuracy(comparison)))
    else:
        from vramplan.render import accuracy as render
        from vramplan.render import terminal

        say(render.markdown(comparison)) if markdown else terminal.print_all(render.accuracy(comparison))
    return 0


def _times(path: Path, markdown: bool) -> None:
    """Print the comparison with published training speeds."""
    from vramplan.measurements.speed import compare_times
    from vramplan.render import speed, terminal

    with progress() as tell:
        speeds = compare_times(path, tell)
    say(speed.markdown(speeds)) if markdown else terminal.print_all(speed.speeds(speeds))


def _emulated(path: Path, markdown: bool) -> None:
    """Print the comparison with runs on emulated GPUs."""
    from vramplan.measurements.emulated import compare_emulated
    from vramplan.render import emulated, terminal

    with progress() as tell:
        runs = compare_emulated(path, tell)
    say(emulated.markdown(runs)) if markdown else terminal.print_all(emulated.emulated(runs))
