"""How long a cold answer takes, as ratios to what its libraries cost by themselves.

Run: ``python benchmarks/cold_start.py``. Times are the best of several, taken in turns, so that a busy machine slows
all of them alike.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

LIBRARIES = "import typer, rich, pydantic"
MODELS = LIBRARIES + "; from pydantic import BaseModel; from rich.table import Table"
ASK = ["-m", "vramplan", "suggest", "Qwen/Qwen2.5-7B-Instruct", "--gpu", "rtx4090d", "--global-batch", "16"]
SEARCH = (
    "import time, vramplan; vramplan.suggest('Qwen/Qwen2.5-7B-Instruct', 'rtx4090d', 16)\n"
    "best = min((lambda t: (vramplan.suggest('Qwen/Qwen2.5-7B-Instruct', 'rtx4090d', 16), time.perf_counter() - t)[1])"
    "(time.perf_counter()) for _ in range(5))\nprint(best)"
)
COMMANDS = {
    LIBRARIES: ["-c", LIBRARIES],
    "the same with a pydantic model and a rich table": ["-c", MODELS],
    "vramplan suggest": ASK,
    "vramplan estimate": [*ASK[:2], "estimate", *ASK[3:6]],
}


def main() -> None:
    times: dict[str, float] = dict.fromkeys(COMMANDS, float("inf"))
    for _ in range(9):
        for name, arguments in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
            times[name] = min(times[name], time.perf_counter() - start)
    base = times[LIBRARIES]
    for name, seconds in times.items():
        print(f"{seconds / base:6.2f} x  {seconds * 1e3:6.0f} ms  {name}")
    search = float(subprocess.run([sys.executable, "-c", SEARCH], capture_output=True, text=True, check=True).stdout)
    print(f"{search / base:6.2f} x  {search * 1e3:6.0f} ms  a whole search in a running process")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"{peak / 1024:8.0f} MiB peak memory of the largest process")


if __name__ == "__main__":
    main()
