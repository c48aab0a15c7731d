"""Measure the jobs of the matrix on every GPU of this machine at once, one process for each GPU of a job."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from vramplan.errors import ConfigError, VramplanError
from vramplan.inputs import nvml
from vramplan.measurements import ledger, measure, probe
from vramplan.measurements.matrix import CASES, Case
from vramplan.measurements.probe import ProbeDevice
from vramplan.measurements.subprocess_runner import TIMEOUT_SECONDS, Cancellation
from vramplan.units import counted

MIN_SECONDS = 25.0
"""With less time left no run is started: importing torch alone takes ten seconds."""

Show = Callable[[str, str, float], None]
"""(name of the GPU or "" for all of them, description of the current work, share that is done)"""


class Slot(NamedTuple):
    """What one process runs on: a GPU of this machine, a core with an emulated GPU, or the host."""

    name: str
    """Such as GPU 0."""
    device: ProbeDevice

    @property
    def kind(self) -> str:
        """Equal for slots that can share a job, and whose runs are the same runs in the ledger."""
        local = self.device.local_gpu
        return f"{self.device.gpu.name} {local.name if local else self.device.type}"


class Task(NamedTuple):
    """A case to be run on one kind of GPU."""

    case: Case
    kind: str
    """Of :attr:`Slot.kind`."""
    num_slots: int


class Result(NamedTuple):
    """How a task ended."""

    name: str
    """The case's name."""
    slots: tuple[str, ...]
    """Names of the GPUs that it ran on."""
    text: str
    """Its figures, or why it failed."""
    measured: bool


class Left(NamedTuple):
    """What a campaign has to do."""

    tasks: list[Task]
    """The most informative first."""
    skipped: list[str]
    """A line for each case that this machine cannot run."""


def slots(
    as_gpu: str | None = None, *, device: str = "cuda", timeout: float = TIMEOUT_SECONDS
) -> tuple[list[Slot], list[str]]:
    """Every GPU that is visible here, or those GPUs standing in for a smaller one; or without a GPU, by `device`.

    There are as many emulated GPUs as cores; with ``device="cpu"``, the host runs one job at a time.

    Returns:
        The GPUs, and a line of text for each that cannot be used beside others that can.

    Raises:
        ConfigError: if there is no GPU, or none that can be used: all are smaller than `as_gpu`.
    """
    if device != "cuda":
        tried = probe.probe_device(as_gpu, device=device, timeout=timeout)  # type: ignore[arg-type]
        count = os.cpu_count() or 1
        if device == "emulated":
            return [Slot(f"emulated {number}", tried) for number in range(count)], []
        return [Slot("host", tried)], []
    names = nvml.visible_gpus()
    usable: list[Slot] = []
    errors: list[ConfigError] = []
    for number in range(len(names) or 1):
        try:
            tried = probe.probe_device(as_gpu, number=number, timeout=timeout)
            usable.append(Slot(f"GPU {number}", replace(tried, gpus=tuple(names[number : number + 1]))))
        except ConfigError as error:
            errors.append(error)
    if not usable:
        raise errors[0]
    return usable, [str(error) for error in errors]


def left(slots: Sequence[Slot], folder: Path, cases: Sequence[Case] = CASES) -> Left:
    """The runs that the ledger lacks, each once, for every kind of GPU in this machine.

    Raises:
        ConfigError: for a broken file in the ledger, or runs of another type of device.
    """
    tasks: dict[str, Task] = {}
    skipped: list[str] = []
    for kind in dict.fromkeys(slot.kind for slot in slots):
        alike = [slot.device for slot in slots if slot.kind == kind]
        num_gpus = len(alike) if alike[0].type == "cuda" else None
        skipped += measure.impossible(alike[0], cases, num_gpus)
        for case in measure.left(alike[0], folder, cases, num_gpus):
            tasks.setdefault(measure.key(case, alike[0]), Task(case, kind, min(case.num_gpus, len(alike))))
    order = {case.name: number for number, case in enumerate(cases)}
    return Left(sorted(tasks.values(), key=lambda task: order[task.case.name]), list(dict.fromkeys(skipped)))


def run(
    slots: Sequence[Slot], folder: Path, tasks: Sequence[Task], seconds: float, show: Show = lambda *_: None
) -> Generator[Result, None, None]:
    """Run tasks for at most `seconds`, as many at once as there are GPUs; yields each result as it comes.

    A task that fails or takes too long ends alone. Tasks that there was no time for are not yielded: call it again.
    Closing the iterator, or Ctrl-C, ends all processes.

    Raises:
        ConfigError: if the folder cannot be written.
    """
    ledger.make(folder)
    campaign = _Campaign(slots, folder, tasks, monotonic() + seconds, show)
    try:
        yield from campaign.results()
    finally:
        campaign.end()


class _Campaign:
    """The tasks that wait, and those that run: each in a thread that waits for its processes."""

    def __init__(self, slots: Sequence[Slot], folder: Path, tasks: Sequence[Task], deadline: float, show: Show) -> None:
        self.folder, self.deadline, self.show = folder, deadline, show
        self.order, self.waiting, self.running = [*slots], [*tasks], 0
        self.free = [*slots]
        self.finished: queue.Queue[tuple[list[Slot], Result]] = queue.Queue()
        self.threads: list[threading.Thread] = []
        self.cancellation = Cancellation()

    def results(self) -> Iterator[Result]:
        """Start tasks and yield their results until none waits, or there is no time left to start one."""
        count, done, failed = len(self.waiting), 0, 0
        while True:
            self._start_tasks()
            if not self.running:
                return
            failures = f", {failed} failed" if failed else ""
            self.show("", f"{done} of {counted(count, 'run')} done{failures}", done / count)
            slots, result = self.finished.get()
            self.running -= 1
            self.free = sorted([*self.free, *slots], key=self.order.index)
            done += 1
            failed += not result.measured
            yield result

    def _start_tasks(self) -> None:
        """Start what there are GPUs for, in order: a job of several GPUs is not overtaken for ever by jobs of one."""
        held: set[str] = set()
        for task in [*self.waiting]:
            if self.deadline - monotonic() < MIN_SECONDS:
                return
            slots = [slot for slot in self.free if slot.kind == task.kind][: task.num_slots]
            if task.kind in held or len(slots) < task.num_slots:
                held.add(task.kind)
                continue
            self.waiting.remove(task)
            self.free = [slot for slot in self.free if slot not in slots]
            self.running += 1
            self.threads.append(threading.Thread(target=self._run, args=(task, slots), daemon=True))
            self.threads[-1].start()

    def _run(self, task: Task, slots: list[Slot]) -> None:
        line = slots[0].name
        device = replace(
            slots[0].device,
            gpus=tuple(name for slot in slots for name in slot.device.gpus),
            deadline=self.deadline,
            progress=lambda what, share: self.show(line, f"{task.case.model}: {what}", share),
            cancellation=self.cancellation,
        )
        try:
            text, measured = measure.run(task.case, device, self.folder), True
        except VramplanError as error:
            text, measured = str(error).removeprefix(f"{task.case.model}: "), False
        except Exception as error:  # a defect of one run does not end the others
            text, measured = f"{type(error).__name__}: {error}", False
        self.show(line, "", 0.0)
        self.finished.put((slots, Result(task.case.name, tuple(slot.name for slot in slots), text, measured)))

    def end(self) -> None:
        """End all processes, and wait until the GPUs are free."""
        self.cancellation.cancel()
        for thread in self.threads:
            thread.join()
