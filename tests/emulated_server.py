"""A process that has imported everything, and runs each job on emulated GPUs in forks of itself, a fork for each rank.

python -m tests.emulated_server    # requests on standard input, answers on standard output, a line each
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from vramplan.inputs.catalog import find_gpu
from vramplan.memory.measurement import Request
from vramplan.memory.overheads import outside_bytes

SECONDS = 420
"""That one job may take."""


class Server:
    """A server in a process of its own."""

    def __init__(self) -> None:
        from vramplan.emulated_gpu import build, environment

        variables = environment.variables(build.installed(), find_gpu("a100-80gb"), 0)
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # warnings of every job; an answer holds the error
            text=True,
            env={**os.environ, **variables, "OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
        )

    def run(self, request: Request) -> dict[str, Any]:
        """The outcome and the peaks of a job, or {"error": ...}."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(request.model_dump_json(exclude_unset=True) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def serve() -> None:
    """Answer the requests on standard input."""
    import transformers.models.auto.modeling_auto  # noqa: F401  (peft is left to the forks: bitsandbytes starts CUDA)

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        answers.write(json.dumps(measure(Request.model_validate_json(line))) + "\n")
        answers.flush()


def measure(request: Request) -> dict[str, Any]:
    """The outcome of a job and the highest peaks of all ranks, or {"error": ...}."""
    ranks = range(request.job.num_gpus)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _wait([_start(request, rank, folder) for rank in ranks], folder)
        answers = [_answer(folder, rank) or {"error": "no answer"} for rank in ranks]
    failed = [answer for answer in answers if answer.get("outcome") != "ok"]
    if failed:
        return min(failed, key=lambda answer: "error" in answer)  # one rank runs out of memory, the others then fail
    return answers[0] | {key: max(a[key] for a in answers) for key in ("allocated_bytes", "reserved_bytes")}


def _start(request: Request, rank: int, folder: Path) -> int:
    """Fork a rank, and return its process."""
    process = os.fork()
    if process == 0:
        os.setsid()
        meeting_point = f"file://{folder}/meeting" if request.job.num_gpus > 1 else None
        own = {"rank": rank, "local_rank": rank, "meeting_point": meeting_point}
        _run_rank(request.model_copy(update=own), folder)
    return process


def _wait(processes: list[int], folder: Path) -> None:
    """Wait for the ranks; all end if one fails, or if time is up."""
    deadline = time.monotonic() + SECONDS
    waiting = set(processes)
    while waiting:
        done, _ = os.waitpid(-1, os.WNOHANG)
        waiting.discard(done)
        outcomes = [_answer(folder, rank).get("outcome", "ok") for rank in range(len(processes))]
        if time.monotonic() > deadline or set(outcomes) != {"ok"}:
            for process in waiting:
                os.killpg(process, signal.SIGKILL)
        if not done:
            time.sleep(0.05)


def _answer(folder: Path, rank: int) -> dict[str, Any]:
    """What a rank wrote; nothing yet if empty."""
    path = folder / f"{rank}.json"
    answer: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return answer


def _run_rank(request: Request, folder: Path) -> None:
    """The rest of a fork's life."""
    from vramplan.emulated_gpu import build, environment

    outside = outside_bytes(request.job, request.card)
    variables = environment.variables(build.installed(), request.card, outside, request.job.num_gpus, folder / "state")
    os.environ.update({name: value for name, value in variables.items() if name != "LD_PRELOAD"})
    if request.settings:
        os.environ["PYTORCH_ALLOC_CONF"] = request.settings
    try:
        from vramplan.torch_backend.probe import run

        measured, _ = run.run(request, lambda what, share: None)
        answer: dict[str, Any] = {
            "outcome": measured.outcome,
            "allocated_bytes": measured.peak_allocated_bytes,
            "reserved_bytes": measured.peak_reserved_bytes,
            "torch": measured.environment.versions["torch"],
        }
    except BaseException as error:  # a fork must not return into the server
        answer = {"outcome": "error", "error": f"{type(error).__name__}: {error}"[:500]}
    path = folder / f"{request.rank}.json"
    path.with_suffix(".part").write_text(json.dumps(answer))
    path.with_suffix(".part").rename(path)
    os._exit(0)


if __name__ == "__main__":
    serve()
