"""Peaks and seconds, phase by phase."""

from __future__ import annotations

from time import perf_counter

from vramplan.memory.measurement import Peaks


class Phases:
    """Peaks and seconds of each phase; one that comes again keeps its highest."""

    def __init__(self) -> None:
        self.name = ""
        self.peaks: dict[str, Peaks] = {}
        self.requested_bytes = 0
        self.seconds: dict[str, float] = {}
        self.since = perf_counter()

    def close(self, allocated_bytes: int, reserved_bytes: int, requested_bytes: int) -> None:
        """The phase that ran until now saw these peaks."""
        now = perf_counter()
        if self.name:
            before = self.peaks.get(self.name)
            if before is not None:
                allocated_bytes = max(allocated_bytes, before.allocated_bytes)
                reserved_bytes = max(reserved_bytes, before.reserved_bytes)
            self.peaks[self.name] = Peaks(allocated_bytes=allocated_bytes, reserved_bytes=reserved_bytes)
            self.seconds[self.name] = self.seconds.get(self.name, 0.0) + now - self.since
            if self.name != "eval":
                self.requested_bytes = max(self.requested_bytes, requested_bytes)

    def open(self, name: str) -> None:
        """From now on `name` runs."""
        self.name, self.since = name, perf_counter()

    def take_seconds(self) -> dict[str, float]:
        """Time of each phase since this was last asked."""
        taken, self.seconds = self.seconds, {}
        return taken
