"""Run a job in child processes: one for each GPU, with a time limit; they end with their parent."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from time import monotonic
from typing import IO, Any

from vramplan import errors
from vramplan.errors import CannotRunError, ConfigError, ProbeError, UnknownNameError, VramplanError, setting
from vramplan.memory.measurement import UNDER_TORCHRUN, Measured, Request, fullest
from vramplan.memory.overheads import outside_bytes
from vramplan.progress import Progress, silent

History = list[tuple[str, int, int]]
"""Every (action, address, bytes) of PyTorch's allocator, as torch.cuda.memory._snapshot names them."""

TIMEOUT_SECONDS = 600.0
"""Default limit of a probe; 70 billion random weights and three steps take a minute or two."""
CHILD = (
    "-c",
    "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv[1]];"
    "from vramplan.torch_backend.probe.child import main; main()",
    str(Path(errors.__file__).parent.parent),
)
"""Imports nothing from the working directory, as ``-m`` would; this package's own folder comes last."""


def run(request: Request, timeout: float = TIMEOUT_SECONDS, progress: Progress = silent) -> tuple[Measured, History]:
    """Run a job's steps in child processes, at most `timeout` seconds. Running out of memory is a result.

    With several ranks the highest figures count; the history is the first rank's. Under torchrun this process is one of
    the ranks that torchrun started; otherwise it starts all ranks on this host.

    Raises:
        ProbeError: if a process crashes or takes too long.
        VramplanError: if the job cannot run; the error is the child process's.
    """
    requests = _requests_of_ranks(request)
    with tempfile.TemporaryDirectory(prefix="vramplan-") as folder:
        return _run(requests, _variables(request, Path(folder)), timeout, progress)


def _variables(request: Request, folder: Path) -> dict[str, str]:
    """Variables that the child processes have beside this one's: those of an emulated GPU.

    Raises:
        VramplanError: if the libraries that emulate it are not built, or it cannot be emulated.
    """
    if request.device != "emulated":
        return {}
    from vramplan.emulated_gpu import build, environment

    outside = outside_bytes(request.job, request.card)
    state = folder / "memory"
    return environment.variables(build.installed(), request.card, outside, request.job.num_gpus, state)


def _run(
    requests: list[Request], variables: dict[str, str], timeout: float, progress: Progress
) -> tuple[Measured, History]:
    inbox: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
    deadline = monotonic() + timeout
    children: list[_Child] = []
    results: dict[int, Measured] = {}
    history: History = []
    try:
        for rank_request in requests:
            children.append(_Child(rank_request, inbox, variables))
        while len(results) < len(requests):
            try:
                rank, event = inbox.get(timeout=max(0.0, deadline - monotonic()))
            except queue.Empty:
                raise ProbeError(f"the probe took more than {timeout:g} s and was stopped") from None
            if event is None:
                if rank not in results:
                    raise ProbeError(next(child for child in children if child.rank == rank).exit_reason())
            elif event["event"] == "progress":
                if rank == requests[0].rank:
                    progress(event["what"], event["share"])
            elif event["event"] == "error":
                raise _error(event)
            else:
                results[rank] = Measured.model_validate_json(json.dumps(event["measured"]))
                if rank == requests[0].rank:
                    history = [(action, address, size) for action, address, size in event["history"]]
                if results[rank].outcome == "oom":  # the other ranks wait for this one in vain
                    break
    finally:
        for child in children:
            child.end()
    return fullest(list(results.values())), history


def is_torchrun() -> bool:
    """Whether torchrun started this process as one rank of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def _requests_of_ranks(request: Request) -> list[Request]:
    """One request for each process that is started here.

    Raises:
        ConfigError: if torchrun started another number of ranks than the job has.
    """
    ranks = request.job.num_gpus
    if not is_torchrun():
        alone = ranks == 1 and not request.job.uses_deepspeed
        meeting_point = None if alone else f"tcp://127.0.0.1:{_free_port()}"
        return [
            request.model_copy(update={"rank": rank, "local_rank": rank, "meeting_point": meeting_point})
            for rank in range(ranks)
        ]
    world_size, rank, local_rank = (int(os.environ[name]) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"))
    if world_size != ranks:
        raise ConfigError(
            f"torchrun started {world_size} ranks, the job has {ranks}; give {setting('num_gpus', world_size)}"
        )
    return [request.model_copy(update={"rank": rank, "local_rank": local_rank, "meeting_point": UNDER_TORCHRUN})]


class _Child:
    """One child process, and the thread that reads its output."""

    def __init__(
        self, request: Request, inbox: queue.Queue[tuple[int, dict[str, Any] | None]], variables: dict[str, str]
    ) -> None:
        self.rank = request.rank
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `end`)
        try:
            self.process = subprocess.Popen(
                [sys.executable, *CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                env={**os.environ, **variables},
                start_new_session=True,  # Ctrl-C goes to the parent only
            )
        except OSError as error:
            self.errors.close()
            raise ProbeError(f"no process can be started ({error.strerror})") from error
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended at once: the thread reports it
            self.process.stdin.write(request.model_dump_json(exclude_unset=True).encode() + b"\n")
            self.process.stdin.flush()
        threading.Thread(target=self._listen, args=(request.rank, inbox), daemon=True).start()

    def _listen(self, rank: int, inbox: queue.Queue[tuple[int, dict[str, Any] | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):  # a line that was cut off
                inbox.put((rank, json.loads(line)))
        self.process.wait()
        inbox.put((rank, None))

    def exit_reason(self) -> str:
        """Why the process ended without a result."""
        code = self.process.wait()
        self.errors.seek(0)
        lines = [line for line in self.errors.read().decode(errors="replace").splitlines() if line.strip()]
        if code < 0:
            name = signal.Signals(-code).name
            hint = " (the host's memory may have run out)" if name == "SIGKILL" else ""
            return f"the probe's process was killed by {name}{hint}"
        return f"the probe's process ended with code {code}: {lines[-1].strip() if lines else 'no error output'}"

    def end(self) -> None:
        """Kill the process and its children, and wait until the GPU's memory is free again."""
        if self.process.poll() is None:
            if hasattr(os, "killpg"):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.errors.close()


def _error(event: dict[str, Any]) -> VramplanError:
    """The child's error; a ConfigError in place of types whose constructors take more than the message."""
    kind = getattr(errors, event["kind"], ConfigError)
    error: VramplanError = (ConfigError if kind in (UnknownNameError, CannotRunError) else kind)(event["line"])
    return error


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
