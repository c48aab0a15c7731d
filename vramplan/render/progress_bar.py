"""A line on the terminal during work that takes more than a moment."""

from __future__ import annotations

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from vramplan.render.terminal import SafeConsole
from vramplan.visible import visible


class Bar:
    """A bar on standard error with the current task, its share and its time; removed when it is closed.

    Work that is done at the same time has a line each, by its name.
    """

    def __init__(self) -> None:
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(20),
            TimeElapsedColumn(),
            console=SafeConsole(stderr=True),
            transient=True,
        )
        self.tasks: dict[str, TaskID] = {}
        self.progress.start()

    def tell(self, task: str, share: float, line: str = "") -> None:
        """Show `task` with `share` of it done, on the line of that name; an empty task removes the line."""
        if not task:
            if line in self.tasks:
                self.progress.remove_task(self.tasks.pop(line))
            return
        if line not in self.tasks:
            self.tasks[line] = self.progress.add_task("", total=1.0)
        text = visible(f"{line}: {task}" if line else task)
        self.progress.update(self.tasks[line], description=text, completed=share)

    def close(self) -> None:
        """Remove the bar."""
        self.progress.stop()
