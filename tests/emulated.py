"""PyTorch's CUDA build on emulated GPUs as the referee of the estimates: the jobs of emulated_jobs.py are run.

    python -m tests.emulated run [--only TEXT] [--fresh] [--processes N]   # where PyTorch's CUDA build is installed
    python -m tests.emulated check [--sample N]                            # there, too
    vramplan accuracy --emulated tests/emulated.jsonl                      # anywhere

Both need `vramplan emulate --install`. ``run`` writes a row for each job to emulated.jsonl; jobs that are there already
are passed over, unless --fresh. ``check`` runs some of the jobs anew, and fails if one differs from its row.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.emulated_jobs import Case, held_out, jobs, searches
from tests.emulated_server import Server
from vramplan.errors import ProbeError, VramplanError
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.load import load_model
from vramplan.measurements.emulated import EmulatedRun, compare_runs
from vramplan.memory.measurement import Request
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.monotone_search import largest

ROWS = Path(__file__).with_name("emulated.jsonl")
MOST_RUNS = 24
"""Of one search for the largest micro-batch."""


def run_all(only: str, fresh: bool, processes: int) -> None:
    """Run the jobs that have no row yet, in several servers; all whose name matches `only`, if `fresh`."""
    from concurrent.futures import ThreadPoolExecutor

    rows = {row["name"]: row for row in read_rows()}
    chosen = [case for case in (*jobs(), *searches(), *held_out()) if re.search(only, case.name)]
    left = [case for case in chosen if fresh or case.name not in rows]
    random.Random(1).shuffle(left)  # what is there when this is stopped is a sample
    servers: SimpleQueue[Server] = SimpleQueue()
    for _ in range(processes):
        servers.put(Server())

    def run_case(case: Case) -> dict[str, Any]:
        row = {"name": case.name, "model": case.model, "gpu": case.gpu, "job": case.settings}
        server = servers.get()
        try:
            return row | (search if case.is_search else run)(server, row)
        except VramplanError as error:
            return row | {"error": str(error)}
        finally:
            servers.put(server)

    with ThreadPoolExecutor(processes) as pool:
        for row in pool.map(run_case, left):
            print(row["name"], row.get("error") or compare(row), flush=True)
            if "error" not in row:
                rows[row["name"]] = row
                write_rows(list(rows.values()))


def run(server: Server, row: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """The outcome and the peaks of a row's job, with `settings` changed.

    Raises:
        VramplanError: if it is no job, or fails otherwise than by running out of memory.
    """
    spec, gpu = load_model(row["model"]), find_gpu(row["gpu"])
    job = complete_job(spec, gpu, {**row["job"], **settings})
    answer = server.run(Request(spec=spec, job=job, card=gpu, device="emulated"))
    if "error" in answer:
        raise ProbeError(answer["error"])
    return answer


def search(server: Server, row: dict[str, Any]) -> dict[str, Any]:
    """The largest micro-batch that runs, looked for around the estimate's.

    Raises:
        VramplanError: if there is no estimate, or a run fails otherwise than by running out of memory.
    """
    version = ""

    def runs(size: int) -> bool:
        nonlocal version
        answer = run(server, row, micro_batch_size=size)
        version = answer["torch"]
        return bool(answer["outcome"] == "ok")

    start = EmulatedRun.model_validate({**row, "outcome": None, "torch": version}).largest_estimated()
    size, is_certain = largest(start, runs, MOST_RUNS)
    if not is_certain:
        raise ProbeError(f"not known after {MOST_RUNS} runs")
    return {"outcome": None, "largest_micro_batch": size, "torch": version}


def check(sample: int) -> int:
    """Run evenly chosen jobs anew; 1 if one allocates or reserves something else than its row says, 0 otherwise."""
    rows = [row for row in read_rows() if row["outcome"] is not None]
    chosen = rows[:: max(1, len(rows) // sample)]
    server, differing = Server(), 0
    for row in chosen:
        try:
            answer = run(server, row)
        except VramplanError as error:
            answer = {"error": str(error)}
        same = all(answer.get(key) == row.get(key) for key in ("outcome", "allocated_bytes", "reserved_bytes"))
        differing += not same
        print("same" if same else f"DIFFERENT: {answer}", row["name"], compare(row), flush=True)
    return int(differing > 0)


def read_rows() -> list[dict[str, Any]]:
    """The committed rows."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def write_rows(rows: list[dict[str, Any]]) -> None:
    """Write the rows in the order of their names."""
    text = "".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: row["name"]))
    ROWS.with_suffix(".part").write_text(text)
    ROWS.with_suffix(".part").replace(ROWS)


def compare(row: dict[str, Any]) -> str:
    """The errors of a row, in words."""
    compared = compare_runs([EmulatedRun.model_validate(row)])
    if compared.left_out:
        return f"no estimate: {compared.left_out[0]}"
    if compared.searches:
        return f"{compared.searches[0].largest} run, {compared.searches[0].chosen} estimated"
    if row["outcome"] == "oom":
        return "out of memory, " + ("ESTIMATED TO FIT" if compared.runs[0].said else "as estimated")
    return ", ".join(f"{size.metric} {size.error:+.2%}" for size in compared.runs[0].rows)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "check"))
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--fresh", action="store_true", help="run jobs that have a row, too")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--sample", type=int, default=36)
    chosen = parser.parse_args()
    if chosen.action == "run":
        run_all(chosen.only, chosen.fresh, chosen.processes)
    else:
        sys.exit(check(chosen.sample))


if __name__ == "__main__":
    main()
