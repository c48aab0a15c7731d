"""What a process costs: processor time of it and its children, and the memory of all of them together."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

SECONDS_BETWEEN_SAMPLES = 0.01


class Cost(NamedTuple):
    """What one run cost."""

    seconds: float
    """Processor time, user and system, of the process and its children."""
    peak_bytes: int
    """Highest resident memory of the processes that ran at the same time; of the largest where there is no /proc."""
    output: str
    """Its standard output."""


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Cost:
    """Run a command to its end.

    Raises:
        RuntimeError: if it fails; an answer "does not fit" is none.
    """
    import resource  # not on Windows

    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    memory = _Memory(process.pid)
    memory.start()
    errors: list[bytes] = []
    assert process.stdout is not None
    assert process.stderr is not None
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))  # type: ignore[union-attr]
    reader.start()
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    memory.ended.set()
    memory.join()
    reader.join()
    process.stdout.close()
    process.stderr.close()
    if process.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}: {errors[0].decode()[-2000:]}")
    # the kernel's figure begins with the memory of this process, whose copy the new one is at first
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_bytes = max(memory.peak_bytes, usage.ru_maxrss << 10 if usage.ru_maxrss > own else 0)
    return Cost(usage.ru_utime + usage.ru_stime, peak_bytes, output.decode())


class _Memory(threading.Thread):
    """Samples the highest resident memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak_bytes, self.ended = pid, 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(SECONDS_BETWEEN_SAMPLES):
            self.peak_bytes = max(self.peak_bytes, sum(map(_highest, _family(self.pid))))


def _family(pid: int) -> list[int]:
    """A process and its descendants, where the system lists them."""
    family = [pid]
    for each in family:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                family += map(int, children.read_text().split())
            except OSError:  # it has ended
                continue
    return family


def _highest(pid: int) -> int:
    """The most resident memory that a process had so far, since it began its program."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return 0
