"""`vramplan site`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from vramplan.cli.options import say
from vramplan.cli.panels import OUTPUT
from vramplan.cli.parameters import Option
from vramplan.units import format_bytes

SLOWER = (
    "vramplan: the core is not compiled for browsers, so that answers take several times as long there; install clang,"
    " wasm-ld and wasi-libc, then run python hatch_build.py, or install vramplan again"
)


def site(
    out: Annotated[Path, Option(help="Folder of the site, for any server of static files.", panel=OUTPUT)],
    parts: Annotated[
        Path | None,
        Option(help="Folder with the downloaded parts, which are not downloaded then.", panel=OUTPUT),
    ] = None,
) -> int:
    """Write a web site that runs vramplan in the visitor's browser, without a server of its own."""
    from vramplan.site import build

    sizes = build.build(out, parts)
    if not build.has_core():
        say(SLOWER, file=sys.stderr)
    say(f"{out}: {len(sizes)} files, {format_bytes(sum(sizes.values()))}; python -m http.server --directory {out}")
    return 0
