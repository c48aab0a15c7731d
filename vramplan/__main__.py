"""``python -m vramplan``."""

from vramplan.cli import main

main()
