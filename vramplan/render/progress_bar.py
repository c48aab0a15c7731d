"""A line on the terminal during work that takes more than a moment."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Bar:
    """A bar on standard error with the current task, its share and its time; removed when it is closed."""

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

    def tell(self, task: str, share: float) -> None:
        """Show `task`, with `share` of it done."""
        self.progress.update(self.task, description=task, completed=share)

    def close(self) -> None:
        """Remove the bar."""
        self.progress.stop()
