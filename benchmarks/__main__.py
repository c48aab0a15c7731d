"""Measures what vramplan costs, and compares it with the targets and with the last committed measurement.

    python -m benchmarks                 this checkout in this environment
    python -m benchmarks --install       a wheel of it in a fresh environment, and the peers in theirs, from a registry
    python -m benchmarks --only search   subjects whose names contain a text
    python -m benchmarks --shares 1      the whole table of 126,000 cells, not one share of it
    python -m benchmarks --write         keeps the result: benchmarks/last.json and docs/benchmarks.md

Times are processor time, user and system. They are taken in turns and given as multiples of what importing the
command line's libraries takes in the same round, so that a busy or slow machine changes them little. Exit code 1:
something takes more than 1.3 times what it took in the last measurement.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.environments import PEERS, ROOT, install, put_model
from benchmarks.measure import Machine, measure
from benchmarks.results import LAST, Results, page, worse


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--install", action="store_true", help="measure a wheel and the peers in fresh environments")
    parser.add_argument("--only", default="", help="subjects whose names contain this text")
    parser.add_argument("--shares", type=int, default=12, help="one of how many shares of the large table (12)")
    parser.add_argument("--write", action="store_true", help="keep the result in the repository")
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("--write keeps whole results, not --only some")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python, peers = sys.executable, {}
        if options.install:
            python = str(install(folder / "vramplan", str(ROOT)) / "python")
            for peer in PEERS:
                program, *arguments = peer.command
                programs = install(folder / peer.package, peer.package)
                peers[peer.package] = [str(programs / program), *(text.format(folder=folder) for text in arguments)]
        machine = Machine(python, folder, peers, put_model(folder))
        results = Results.of(measure(machine, options.only, options.shares), python, options.install)
    print(results.table())
    slower = worse(results, Results.read(LAST)) if LAST.exists() else []
    print(*slower, sep="\n")
    if options.write:
        LAST.write_text(results.as_json())
        page(results)
    sys.exit(1 if slower and not options.write else 0)


if __name__ == "__main__":
    main()
