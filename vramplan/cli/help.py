"""Help pages: options in groups, examples at the end, as plain text of up to 80 columns."""

from __future__ import annotations

import re
import shutil
from textwrap import wrap
from typing import Any

from typer.core import TyperCommand, TyperGroup

from vramplan.cli.panels import OUTPUT, PANELS, TASKS

WIDEST = 80
NARROWEST = 30


class _Plain:
    """What pages of commands and of the whole have in common."""

    epilog: str | None

    def get_help(self, ctx: Any) -> str:
        """The page, as wide as the terminal."""
        ctx.terminal_width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))
        return super().get_help(ctx)  # type: ignore[misc, no-any-return]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Examples, a line each."""
        if not self.epilog:
            return
        with formatter.section("Examples"):
            for example in self.epilog.splitlines():
                whole = re.sub(r"(--[\w-]+) (?=[^-])", "\\1\0", example)  # a value stays beside its option
                lines = wrap(whole, formatter.width - 6, break_on_hyphens=False, break_long_words=False)
                for number, line in enumerate(lines):
                    end = " \\" if number + 1 < len(lines) else ""
                    formatter.write(f"  {'  ' if number else ''}{line}{end}\n".replace("\0", " "))


def _write(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows, col_max=min(30, formatter.width // 3))


class Command(_Plain, TyperCommand):
    """A command whose options stand in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then each group of options."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{panel: [] for panel in PANELS}}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if param.param_type_name == "argument":
                groups["Arguments"].append(record)
            else:
                groups[getattr(param, "rich_help_panel", None) or OUTPUT].append(record)
        for title, rows in groups.items():
            _write(formatter, title, rows)


class Group(_Plain, TyperGroup):
    """All commands, grouped by what they are for."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each group of commands; a summary is never cut."""
        for task in TASKS:
            commands = [self.commands[name] for name in self.list_commands(ctx)]
            rows = [
                (str(command.name), " ".join((command.help or "").split("\n\n")[0].split()))
                for command in commands
                if getattr(command, "rich_help_panel", None) == task and not command.hidden
            ]
            _write(formatter, task, rows)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Commands before options."""
        self.format_commands(ctx, formatter)
        records = [param.get_help_record(ctx) for param in self.get_params(ctx)]
        _write(formatter, "Options", [record for record in records if record is not None])
