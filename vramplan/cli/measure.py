"""`vramplan measure`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vramplan.cli import completion
from vramplan.cli.options import Device, Timeout, progress, say, share_of, spell_flag, typed
from vramplan.cli.panels import CLUSTER, OUTPUT, REAL
from vramplan.cli.parameters import Argument, Option
from vramplan.cli.probe import AsCard, gpu_is_as_card
from vramplan.errors import ConfigError, VramplanError

if TYPE_CHECKING:
    from vramplan.measurements.campaign import Slot, Task
    from vramplan.measurements.matrix import Case

MAX_JOBS = 1000


def measure(
    out: Annotated[
        Path, Option(help="Folder of measured runs, a file each; runs that are there are skipped.", panel=OUTPUT)
    ],
    folders: Annotated[list[str] | None, Argument(metavar="FOLDER", help="The folders that --merge takes.")] = None,
    as_card: AsCard = None,
    device: Device = None,
    minutes: Annotated[float, Option(help="Time for all runs; the most informative come first.", panel=REAL)] = 9.0,
    timeout: Timeout = None,
    only: Annotated[str, Option(help="Runs whose name matches this regular expression.", panel=REAL)] = "",
    show: Annotated[bool, Option("--list", help="List the runs that are left, and stop.", panel=OUTPUT)] = False,
    merge: Annotated[
        bool, Option("--merge", help="Copy the runs of other folders into this one, and stop.", panel=OUTPUT)
    ] = False,
    on: Annotated[
        str | None,
        Option(
            help="slurm: submit jobs to a cluster, and stop; local: the same on this host.",
            panel=CLUSTER,
            complete=completion.one_of("slurm", "local"),
        ),
    ] = None,
    slurm: Annotated[
        list[str] | None,
        Option(
            help="A setting of the jobs, KEY=VALUE, repeated: partition=gpu, account=x, time=60 (minutes),"
            " gpus_per_node=4 ...",
            panel=CLUSTER,
        ),
    ] = None,
    jobs: Annotated[int | None, Option(help="Jobs that share the runs (1).", panel=CLUSTER, min=1)] = None,
    shard: Annotated[
        str | None, Option(help="One share of the runs, 3/16, for jobs that you submit yourself.", panel=CLUSTER)
    ] = None,
    for_launcher: Annotated[
        str | None,
        Option(
            "--for",
            help="Print a file for skypilot or dstack that measures on rented --gpus.",
            panel=CLUSTER,
            complete=completion.one_of("skypilot", "dstack"),
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        Option(
            help="GPUs by name, a100-80gb,rtx4090: the ones to rent; with --list, what is left for each.",
            panel=CLUSTER,
            complete=completion.gpu_names,
        ),
    ] = None,
    num_gpus: Annotated[int | None, Option(help="GPUs of one rented machine (1).", panel=CLUSTER, min=1)] = None,
) -> int:
    """Measure a fixed set of jobs into a folder, on every GPU of this machine; run it again until none is left."""
    from vramplan.measurements import campaign, matrix
    from vramplan.measurements import measure as measuring
    from vramplan.measurements.subprocess_runner import is_torchrun
    from vramplan.render import terminal

    modes = {"--merge": merge, "--list": show, "--on": on, "--for": for_launcher}
    if len(given := [flag for flag, value in modes.items() if value]) > 1:
        raise ConfigError(f"{' and '.join(given)}: give one")
    if merge or folders:
        return _merge(out, folders or [], merge)
    if is_torchrun():
        raise ConfigError("measure starts its runs itself, which torchrun does not allow; run it without torchrun")
    if not campaign.MIN_SECONDS / 60 <= minutes < 1e5:
        raise ConfigError(f"--minutes {minutes:g}: a run takes {campaign.MIN_SECONDS:g} seconds at least")
    cases = measuring.matching(only, matrix.CASES)
    if on is not None:
        beside = {"--shard": shard, "--gpus": gpus, "--num-gpus": num_gpus}
        if unused := [flag for flag, value in beside.items() if value is not None]:
            raise ConfigError(f"--on {on}: give it without {' and '.join(unused)}")
        settings = typed(as_card=as_card, device=device, minutes=minutes, timeout=timeout, only=only)
        return _submit(on, out, slurm or [], jobs or 1, settings)
    if slurm is not None or jobs is not None:
        raise ConfigError(f"{'--jobs' if slurm is None else '--slurm'} is about submitted jobs: add --on slurm")
    if for_launcher is not None:
        here = {"--device": device, "--as-card": as_card, "--shard": shard, "--timeout": timeout}
        if unused := [flag for flag, value in here.items() if value is not None]:
            raise ConfigError(f"--for {for_launcher}: {' and '.join(unused)} have no place in its file")
        return _print_task_file(for_launcher, gpus, num_gpus or 1, minutes, only, out)
    if num_gpus is not None:
        raise ConfigError("--num-gpus is about rented machines: add --for skypilot or --for dstack")
    if shard is not None:
        number, of = share_of(shard, MAX_JOBS)
        cases = cases[number - 1 :: of]
    if gpus is not None:
        if not show:
            raise ConfigError("--gpus is for --list, --for skypilot and --for dstack; see --as-card")
        return _list_left(gpus, device or "cuda", out, cases)
    with gpu_is_as_card():
        slots, unusable = campaign.slots(as_card, **typed(device=device, timeout=timeout))
    tasks, skipped = campaign.left(slots, out, cases)
    terminal.print_all(*unusable, *skipped)
    if not tasks:
        terminal.print_all(f"Nothing is left: every run that this GPU can do is in {out}.")
        return 0
    if show:
        several = len({task.kind for task in tasks}) > 1
        terminal.print_all(*(f"{task.kind}: {task.case.name}" if several else task.case.name for task in tasks))
        return 0
    return _run(slots, out, tasks, minutes)


def _list_left(gpus: str, device: str, out: Path, cases: Sequence[Case]) -> int:
    """Print what is left for GPUs that need not be in this machine; returns the exit code."""
    from vramplan.measurements.measure import left
    from vramplan.measurements.probe import ProbeDevice, check_device
    from vramplan.planner.hardware_candidates import named_gpus
    from vramplan.render import terminal

    check_device(device)
    for gpu in named_gpus(gpus):
        remaining = left(ProbeDevice(gpu, device, capped=device == "cpu", local_gpu=gpu), out, cases)  # type: ignore[arg-type]
        terminal.print_all(*(f"{gpu.name}: {case.name}" for case in remaining))
        if not remaining:
            terminal.print_all(f"{gpu.name}: nothing is left")
    return 0


def _print_task_file(launcher: str, gpus: str | None, num_gpus: int, minutes: float, only: str, out: Path) -> int:
    """Print a file for SkyPilot or dstack, and apart from it what it cannot say; returns the exit code."""
    from vramplan.measurements.rented import task_file
    from vramplan.planner.hardware_candidates import named_gpus

    if gpus is None:
        raise ConfigError(f"--for {launcher}: give --gpus, the GPUs to rent")
    file = task_file(launcher, named_gpus(gpus), num_gpus, minutes, only, out)
    say(file.text, end="")
    for note in file.notes:
        say(f"vramplan: {note}", file=sys.stderr)
    return 0


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


def _submit(engine: str, out: Path, pairs: Sequence[str], num_jobs: int, options: Mapping[str, Any]) -> int:
    """Submit jobs that measure a share of the runs each; returns the exit code."""
    from vramplan.inputs.catalog import find_gpu
    from vramplan.measurements import campaign, cluster
    from vramplan.measurements.probe import check_device
    from vramplan.units import counted

    check_device(options.get("device", "cuda"))
    if "as_card" in options:
        find_gpu(options["as_card"])
    settings = cluster.settings_of(pairs, options["minutes"], needs_gpu=options.get("device", "cuda") == "cuda")
    if engine == "local":
        with gpu_is_as_card():  # jobs on this host would fail in their logs
            campaign.slots(options.get("as_card"), **typed(device=options.get("device")))
    shares = [{**options, "out": out.resolve(), "shard": f"{n + 1}/{num_jobs}"} for n in range(num_jobs)]
    submitted = cluster.submit(engine, out, settings, measure_in_job, shares)
    say(f"Submitted {counted(num_jobs, 'job')}: {', '.join(submitted.names)}. They print into {submitted.logs}.")
    return 0


def measure_in_job(options: Mapping[str, Any]) -> int:
    """What a submitted job runs: the command with these options; returns its exit code."""
    try:
        return measure(**options)
    except VramplanError as error:
        say(f"vramplan: {error.spelled(spell_flag)}", file=sys.stderr)
        return 2
