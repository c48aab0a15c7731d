"""`vramplan measure`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vramplan.cli.options import Device, Timeout, progress, typed
from vramplan.cli.parameters import Argument, Option
from vramplan.cli.probe import AsCard, gpu_is_as_card
from vramplan.errors import ConfigError

if TYPE_CHECKING:
    from vramplan.measurements.campaign import Slot, Task


def measure(
    out: Annotated[Path, Option(help="Folder of measured runs, a file each; runs that are there are skipped.")],
    folders: Annotated[list[str] | None, Argument(metavar="[FOLDER]...", help="Folders to merge.")] = None,
    merge: Annotated[bool, Option("--merge", help="Copy the runs of other folders into this one, and stop.")] = False,
    minutes: Annotated[float, Option(help="Time for all runs; the most informative come first.")] = 9.0,
    only: Annotated[str, Option(help="Runs whose name matches this regular expression.")] = "",
    show: Annotated[bool, Option("--list", help="List the runs that are left, and stop.")] = False,
    device: Device = None,
    as_card: AsCard = None,
    timeout: Timeout = None,
) -> int:
    """Measure a fixed set of jobs into a folder, on every GPU of this machine; run it again until none is left."""
    from vramplan.measurements import campaign
    from vramplan.render import terminal

    if merge or folders:
        return _merge(out, folders or [], merge)
    if not campaign.MIN_SECONDS / 60 <= minutes < 1e5:
        raise ConfigError(f"--minutes {minutes:g}: a run takes {campaign.MIN_SECONDS:g} seconds at least")
    with gpu_is_as_card():
        slots, unusable = campaign.slots(as_card, **typed(device=device, timeout=timeout))
    tasks, skipped = campaign.left(slots, out, only)
    terminal.print_all(*unusable, *skipped)
    if not tasks:
        terminal.print_all(f"Nothing is left: every run that this GPU can do is in {out}.")
        return 0
    if show:
        several = len({task.kind for task in tasks}) > 1
        terminal.print_all(*(f"{task.kind}: {task.case.name}" if several else task.case.name for task in tasks))
        return 0
    return _run(slots, out, tasks, minutes)


def _run(slots: Sequence[Slot], out: Path, tasks: Sequence[Task], minutes: float) -> int:
    """Run the tasks, print each result as it comes; returns the exit code."""
    from vramplan.measurements import campaign
    from vramplan.render import terminal
    from vramplan.units import counted

    measured = failed = 0
    with progress() as tell:
        runs = campaign.run(slots, out, tasks, minutes * 60, lambda line, what, share: tell(what, share, line))
        with closing(runs):
            for result in runs:
                where = f"{', '.join(result.slots)}: " if len(slots) > 1 else ""
                problem = "" if result.measured else "failed: "
                terminal.print_all(f"{where}{result.name}: {problem}{result.text}")
                measured += result.measured
                failed += not result.measured
    left = len(tasks) - measured - failed
    failures = f", {failed} failed" if failed else ""
    rest = f"; out of time, {left} left: run it again" if left else ""
    terminal.print_all(f"{counted(measured, 'run')} measured{failures}{rest}.")
    return 0 if measured else 1


def _merge(out: Path, folders: Sequence[str], is_merge: bool) -> int:
    """Merge other ledgers into `out`; returns the exit code."""
    if not is_merge:
        raise ConfigError(f"{folders[0]}: folders are for --merge")
    if not folders:
        raise ConfigError("--merge needs the folders whose runs are copied")
    from vramplan.measurements.merge import merge
    from vramplan.render import terminal
    from vramplan.units import counted

    merged = merge(out, [Path(folder) for folder in folders])
    done = f"{counted(merged.added, 'run')} added, {merged.replaced} replaced by later ones"
    terminal.print_all(*merged.conflicts, f"{out}: {done}, {merged.unchanged} unchanged.")
    return 1 if merged.conflicts else 0
