"""The command line: flags in, an answer or one line of error out.

Exit codes: 0 fits, 1 does not fit, 2 bad input.
"""

from __future__ import annotations

from vramplan.cli.app import main

__all__ = ["main"]
