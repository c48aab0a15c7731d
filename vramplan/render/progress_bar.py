"""A line on the terminal while something takes more than a moment."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Bar:
    """What is being done, how far it is, and for how long; gone when it is done."""

    def __init__(self) -> None:
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(20),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.task = self.progress.add_task("", total=1.0)
        self.progress.start()

    def tell(self, what: str, share: float) -> None:
        """Show `what`, with `share` of it done."""
        self.progress.update(self.task, description=what, completed=share)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.progress.stop()
