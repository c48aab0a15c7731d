"""Campaigns as Slurm jobs, submitted through submitit, which is imported only here.

Names of settings: submitit 1.5.4, submitit/slurm/slurm.py (_make_sbatch_string), and Slurm's sbatch(1) for those that
submitit passes on as ``additional_parameters``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from vramplan.errors import ConfigError, MissingDependencyError, ProbeError, UnknownNameError, setting
from vramplan.measurements import ledger

ENGINES = ("slurm", "local")
"""Where jobs are submitted to: a Slurm cluster, or this host, to try it out."""
NUMBERS = ("time", "gpus_per_node", "cpus_per_task", "array_parallelism")
"""Settings that are whole numbers; time is in minutes."""
TEXTS = (
    "account", "partition", "qos", "constraint", "gres", "mem", "nodelist", "exclude", "dependency", "job_name",
    "comment", "mail_type", "mail_user", "wckey",
)  # fmt: skip
"""Settings that submitit passes on as they are."""
OTHERS = ("reservation", "licenses", "begin", "nice", "clusters", "gpus", "hint", "requeue")
"""Options of sbatch that submitit has no parameter for."""
LISTS = ("setup",)
"""Settings that can be repeated: commands that the job's shell runs first."""
KNOWN = (*NUMBERS, *TEXTS, *OTHERS, *LISTS)
START_MINUTES = 10
"""Added to the campaign's time: a job loads Python, and ends its last run."""
LOGS = "jobs"
"""Folder in the ledger for what the jobs print, and for submitit's own files."""


class Submitted(NamedTuple):
    """Jobs that wait or run."""

    names: list[str]
    """Their numbers in Slurm, or process ids."""
    logs: Path
    """Folder of what they print."""


def settings_of(pairs: Sequence[str], minutes: float, needs_gpu: bool = True) -> dict[str, Any]:
    """The settings of ``KEY=VALUE`` pairs, with submitit's names; a job gets one GPU and the time that it needs.

    Raises:
        ConfigError: for a pair without a value, or a value that is not a number.
        UnknownNameError: for an unknown setting.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, has_value, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not has_value or not key or not value.strip():
            raise ConfigError(f"{setting('slurm', pair)}: expected KEY=VALUE, such as partition=gpu")
        if key not in KNOWN:
            raise UnknownNameError("Slurm setting", key, KNOWN, f"known: {', '.join(KNOWN)}")
        if key in LISTS:
            settings.setdefault(key, []).append(value)
        elif key in NUMBERS:
            if not value.isdecimal() or not int(value):
                unit = " of minutes" if key == "time" else ""
                raise ConfigError(f"{setting('slurm', pair)}: expected a whole number{unit} above 0")
            settings[key] = int(value)
        elif key in OTHERS:
            settings.setdefault("additional_parameters", {})[key] = value
        else:
            settings[key] = value
    needed = ceil(minutes) + START_MINUTES
    if settings.setdefault("time", needed) <= minutes:
        raise ConfigError(
            f"{setting('slurm', 'time={}'.format(settings['time']))}: {setting('minutes', f'{minutes:g}')} needs more"
        )
    given = {*settings, *settings.get("additional_parameters", {})}
    if needs_gpu and not given & {"gpus_per_node", "gres", "gpus"}:
        settings["gpus_per_node"] = 1
    return {"job_name": "vramplan", **settings}


def submit(
    engine: str, folder: Path, settings: Mapping[str, Any], function: Callable[..., Any], arguments: Sequence[Any]
) -> Submitted:
    """Submit a job on one node for each item of `arguments`, which calls `function` with it; returns at once.

    The folder is made if it does not exist.

    Raises:
        UnknownNameError: for an unknown engine.
        MissingDependencyError: if submitit is not installed.
        ConfigError: if there is no Slurm here, or the folder cannot be written.
        ProbeError: if Slurm refuses the jobs, with its own message.
    """
    if engine not in ENGINES:
        raise UnknownNameError("place to run on", engine, ENGINES, f"known: {', '.join(ENGINES)}")
    try:
        import submitit
    except ImportError as error:
        raise MissingDependencyError(
            f'{setting("on", engine)} needs submitit: pip install "vramplan[slurm]"'
        ) from error
    logs = folder.resolve() / LOGS
    try:
        executor: Any
        if engine == "slurm":
            executor = submitit.SlurmExecutor(folder=logs)
            executor.update_parameters(**settings, nodes=1, ntasks_per_node=1, stderr_to_stdout=True)
        else:
            executor = submitit.LocalExecutor(folder=logs)
            executor.update_parameters(
                timeout_min=settings["time"],
                gpus_per_node=settings.get("gpus_per_node", 0),
                setup=settings.get("setup", ()),
                stderr_to_stdout=True,
            )
    except OSError as error:
        raise ConfigError(f"{logs}: cannot be written ({error.strerror})") from error
    except RuntimeError as error:  # submitit finds no srun
        raise ConfigError(f"{setting('on', engine)}: this host has no Slurm (no srun command is found)") from error
    ledger.make(folder)
    try:
        with redirect_stderr(StringIO()):  # submitit prints what sbatch says, which the error holds too
            jobs = executor.map_array(function, arguments)
    except (OSError, RuntimeError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ProbeError(f"{setting('on', engine)}: {lines[-1] if lines else type(error).__name__}") from error
    return Submitted([str(job.job_id) for job in jobs], logs)
