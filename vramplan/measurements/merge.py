"""Merge ledgers: runs measured on several machines become one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vramplan.errors import ConfigError
from vramplan.measurements import ledger
from vramplan.memory.measurement import Measured
from vramplan.units import GiB


class Merged(NamedTuple):
    """What a merge did."""

    added: int
    """Runs that the folder did not hold."""
    replaced: int
    """Runs that were measured again later, with the same peaks."""
    unchanged: int
    """Runs that the folder held already, or that were measured later there."""
    conflicts: list[str]
    """A line for each run that was left out, since the peaks of the same run differ."""


class _Entry(NamedTuple):
    run: Measured
    folder: Path


def merge(folder: Path, sources: Sequence[Path]) -> Merged:
    """Copy the runs of other ledgers into a folder, which is created if it does not exist.

    The same run measured twice with the same outcome and peaks is kept as measured last. If these differ, the run stays
    as it is in the folder and is reported. Nothing is written before all files are read and checked.

    Raises:
        ConfigError: for a folder that does not exist, holds no run or is `folder` itself, a broken file, runs of
            another kind of device than the folder's, or a folder that cannot be written.
    """
    known = {run.identity: _Entry(run, folder) for run in (ledger.load_all(folder) if folder.is_dir() else [])}
    types = {entry.run.device_type for entry in known.values()}
    changed: dict[str, bool] = {}
    """Of the runs to write: whether the folder held them before."""
    unchanged = 0
    conflicts: list[str] = []
    for source in sources:
        runs = ledger.load_all(source)
        if source.resolve() == folder.resolve():
            raise ConfigError(f"{source}: cannot be merged into itself")
        if not runs:
            raise ConfigError(f"{source}: holds no measured run")
        for run in runs:
            types = types or {run.device_type}
            ledger.check_device_type(source, [run], *types)
            ledger.load_history(source, run)
            name, entry = run.identity, _Entry(run, source)
            earlier = known.get(name)
            if earlier is None:
                changed[name] = False
            elif _figures(run) != _figures(earlier.run):
                conflicts.append(f"{name}: {_described(earlier)}, {_described(entry)}; delete one of the two files")
                continue
            elif run.date <= earlier.run.date:
                unchanged += 1
                continue
            else:
                changed.setdefault(name, True)
            known[name] = entry
    for name in changed:
        ledger.save(folder, known[name].run, ledger.load_history(known[name].folder, known[name].run))
    replaced = sum(changed.values())
    return Merged(len(changed) - replaced, replaced, unchanged, conflicts)


def _figures(run: Measured) -> tuple[str, int | None, int | None]:
    """What the same run has again whenever it is measured, unlike its time."""
    return run.outcome, run.peak_allocated_bytes, run.peak_reserved_bytes


def _described(entry: _Entry) -> str:
    run = entry.run
    result = "out of memory"
    if run.peak_allocated_bytes is not None and run.peak_reserved_bytes is not None:
        result = f"{run.peak_allocated_bytes / GiB:.3f} GiB allocated, {run.peak_reserved_bytes / GiB:.3f} reserved"
    software = f"torch {run.environment.versions.get('torch', 'of an unknown version')}"
    return f"{result} in {entry.folder} ({run.date}, {run.environment.device}, {software})"
