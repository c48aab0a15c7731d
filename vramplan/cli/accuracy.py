"""`vramplan accuracy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from vramplan.cli.options import AsJson, progress, say
from vramplan.cli.parameters import Option

LEDGER = Path("tests/measured")
"""Compared if neither a ledger nor published runs are named, and if it exists."""


def accuracy(
    ledger: Annotated[Path | None, Option(help="Folder of measured runs (tests/measured, if it exists).")] = None,
    published: Annotated[Path | None, Option(help="File of runs that others have published.")] = None,
    by: Annotated[str, Option(help="Estimators to compare: analytic, trace, or both with a comma.")] = "analytic",
    markdown: Annotated[bool, Option("--markdown", help="Print Markdown.")] = False,
    as_json: AsJson = False,
) -> int:
    """Compare estimates with measured runs."""
    from vramplan.measurements.accuracy import compare

    if ledger is None and (published is None or LEDGER.is_dir()):
        ledger = LEDGER
    with progress() as tell:
        comparison = compare(ledger, published, tuple(by.split(",")), tell)
    if as_json:
        from vramplan.render import json_output, probe_json

        say(json_output.dumps(probe_json.accuracy(comparison)))
    else:
        from vramplan.render import probe as render
        from vramplan.render import terminal

        say(render.markdown(comparison)) if markdown else terminal.print_all(render.accuracy(comparison))
    return 0
