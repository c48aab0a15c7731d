"""Draws the README's picture, ``docs/images/suggest.svg`` and its dark twin, from the real output of a command.

Run it again after the terminal output has changed: ``python docs/make_pictures.py``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from vramplan.cli import main
from vramplan.render import terminal

COMMAND = "suggest Qwen/Qwen2.5-7B-Instruct --gpu rtx4090 --method lora --lora-rank 8 --seq-len 2048 --global-batch 16"
TITLE = "vramplan suggest Qwen/Qwen2.5-7B-Instruct --gpu rtx4090 --global-batch 16"
FOLDER = Path(__file__).parent / "images"
WIDTH = 80
LAST_LINE = "Assumes"
"""The picture ends before the assumptions: the documentation prints them as text."""

ANSI = [(40, 46, 56), (184, 35, 42), (11, 112, 64), (133, 83, 10), (36, 86, 199), (140, 60, 150), (15, 110, 130)]
LIGHT = TerminalTheme((255, 255, 255), (20, 24, 31), [*ANSI, (84, 93, 107)], [*ANSI, (84, 93, 107)])
ANSI_DARK = [
    (60, 68, 80), (255, 128, 120), (76, 195, 138), (229, 179, 74), (134, 171, 255), (200, 150, 230), (90, 200, 220),
]  # fmt: skip
DARK = TerminalTheme((14, 17, 22), (232, 235, 239), [*ANSI_DARK, (155, 165, 179)], [*ANSI_DARK, (155, 165, 179)])
THEMES = {"suggest.svg": LIGHT, "suggest-dark.svg": DARK}


@contextmanager
def recorded() -> Iterator[Console]:
    """A console that every part of the terminal output is printed to, as if it were a terminal in colour."""
    console = Console(
        record=True, width=WIDTH, force_terminal=True, color_system="truecolor", highlight=False, file=sys.stderr
    )
    with patch.object(terminal, "console", lambda *_, **__: console):
        yield console


def lines_to_draw(console: Console) -> Console:
    """The same output again, without the lines from `LAST_LINE` on."""
    text = console.export_text(styles=True, clear=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    end = next((number for number, line in enumerate(plain) if line.startswith(LAST_LINE)), len(plain))
    kept = "\n".join(text.splitlines()[:end]).rstrip()
    drawn = Console(record=True, width=WIDTH, force_terminal=True, color_system="truecolor", file=sys.stderr)
    drawn.print(Text.from_ansi(kept + "\n"))
    return drawn


def tidied(svg: str) -> str:
    """Without rules that load a font from a server: the reader's own monospaced font is used."""
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("rgba(255,255,255,0.35)", "rgba(128,128,128,0.45)")  # a frame that shows on white, too
    return svg.replace("Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace")


def draw() -> None:
    """Run the command once and write a picture for each theme."""
    with recorded() as console, patch.object(sys, "argv", ["vramplan", *COMMAND.split()]):
        try:
            main()
        except SystemExit as end:
            if end.code not in (0, None):
                raise
    drawn = lines_to_draw(console)
    FOLDER.mkdir(exist_ok=True)
    for name, theme in THEMES.items():
        svg = drawn.export_svg(title=TITLE, theme=theme, clear=False, unique_id=Path(name).stem)
        (FOLDER / name).write_text(tidied(svg), encoding="utf-8")


if __name__ == "__main__":
    draw()
