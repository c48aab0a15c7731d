"""`vramplan measure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from vramplan.cli.options import Device, progress, typed
from vramplan.cli.parameters import Option
from vramplan.cli.probe import AsCard, gpu_is_as_card
from vramplan.errors import ConfigError


def measure(
    out: Annotated[Path, Option(help="Folder of measured runs, a file each; runs that are there are skipped.")],
    minutes: Annotated[float, Option(help="Time for all runs; the most informative come first.")] = 9.0,
    only: Annotated[str, Option(help="Runs whose name matches this regular expression.")] = "",
    show: Annotated[bool, Option("--list", help="List the runs that are left, and stop.")] = False,
    device: Device = None,
    as_card: AsCard = None,
) -> int:
    """Measure a fixed set of jobs into a folder; run it again until none is left."""
    from vramplan.measurements import measure as matrix
    from vramplan.measurements import probe as probing
    from vramplan.render import terminal

    if not matrix.MIN_SECONDS / 60 <= minutes < 1e5:
        raise ConfigError(f"--minutes {minutes:g}: a run takes {matrix.MIN_SECONDS:g} seconds at least")
    with progress() as tell:
        with gpu_is_as_card():
            probe_device = probing.probe_device(as_card, progress=tell, **typed(device=device))
        terminal.print_all(*matrix.impossible(probe_device, only))
        cases = matrix.left(probe_device, out, only)
        if not cases:
            terminal.print_all(f"Nothing is left: every run that this GPU can do is in {out}.")
        elif show:
            terminal.print_all(*(case.name for case in cases))
        if show or not cases:
            return 0
        any_measured = False
        for line, measured in matrix.run(probe_device, out, cases, minutes * 60):
            terminal.print_all(line)
            any_measured |= measured
    return 0 if any_measured else 1
