"""Peak memory and time of each phase of a run."""

from __future__ import annotations

from time import perf_counter

from vramplan.memory.measurement import Peaks


class Phases:
    """Peaks and seconds of each phase; if a phase runs again, its highest peak counts."""

    def __init__(self) -> None:
        self.name = ""
        self.peaks: dict[str, Peaks] = {}
        self.requested_bytes = 0
        self.seconds: dict[str, float] = {}
        self.since = perf_counter()

    def close(self, allocated_bytes: int, reserved_bytes: int, requested_bytes: int) -> None:
        """End the current phase with these peaks."""
        now = perf_counter()
        if self.name:
            earlier = self.peaks.get(self.name)
            if earlier is not None:
                allocated_bytes = max(allocated_bytes, earlier.allocated_bytes)
                reserved_bytes = max(reserved_bytes, earlier.reserved_bytes)
            self.peaks[self.name] = Peaks(allocated_bytes=allocated_bytes, reserved_bytes=reserved_bytes)
            self.seconds[self.name] = self.seconds.get(self.name, 0.0) + now - self.since
            if self.name != "eval":
                self.requested_bytes = max(self.requested_bytes, requested_bytes)

    def open(self, name: str) -> None:
        """Start the phase `name`."""
        self.name, self.since = name, perf_counter()

    def take_seconds(self) -> dict[str, float]:
        """Seconds of each phase since the last call."""
        seconds, self.seconds = self.seconds, {}
        return seconds
