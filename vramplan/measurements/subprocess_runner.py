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
from collections.abc import Mapping, Sequence
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

Inbox = queue.Queue[tuple[int, dict[str, Any] | None]]
"""Events by the rank that sent them; None at its end."""

TIMEOUT_SECONDS = 600.0
"""Default limit of a probe; 70 billion random weights and three steps take a minute or two."""
CHILD = (
    "-c",
    "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv[1]];"
    "from vramplan.torch_backend.probe.child import main; main()",
    str(Path(errors.__file__).parent.parent),
)
"""Imports nothing from the working directory, as ``-m`` would; this package's own folder comes last."""


class Cancellation:
    """Ends the runs of other threads: their child processes are killed, and no more are started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: list[_Child] = []
        self._is_set = False

    def cancel(self) -> None:
        """Kill every child process; the runs raise ProbeError."""
        with self._lock:
            self._is_set = True
            for child in self._children:
                child.kill()

    def start(self, request: Request, inbox: Inbox, variables: Mapping[str, str]) -> _Child:
        """Start a child process.

        Raises:
            ProbeError: once :meth:`cancel` was called.
        """
        with self._lock:
            if self._is_set:
                raise ProbeError("the probe was interrupted")
            child = _Child(request, inbox, variables)
            self._children.append(child)
        return child

    def end(self, child: _Child) -> None:
        """End a child process, if it has not ended yet, and forget it."""
        with self._lock:
            self._children.remove(child)
        child.end()


def run(
    request: Request,
    timeout: float = TIMEOUT_SECONDS,
    progress: Progress = silent,
    gpus: Sequence[str] = (),
    cancellation: Cancellation | None = None,
) -> tuple[Measured, History]:
    """Run a job's steps in child processes, at most `timeout` seconds. Running out of memory is a result.

    The processes see the GPUs with these UUIDs, or all that this process sees if none are given. With several ranks the
    highest figures count; the history is the first rank's. Under torchrun this process is one of the ranks that
    torchrun started; otherwise it starts all ranks on this host.

    Raises:
        ProbeError: if a process crashes or takes too long.
        VramplanError: if the job cannot run; the error is the child process's.
    """
    requests = _requests_of_ranks(request)
    with tempfile.TemporaryDirectory(prefix="vramplan-") as folder:
        variables = _variables(request, Path(folder), gpus)
        return _run(requests, variables, timeout, progress, cancellation or Cancellation())


def _variables(request: Request, folder: Path, gpus: Sequence[str]) -> dict[str, str]:
    """Variables that the child processes have beside this one's: which GPUs they see, or those of an emulated GPU.

    Raises:
        VramplanError: if the libraries that emulate it are not built, or it cannot be emulated.
    """
    if request.device != "emulated":
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    from vramplan.emulated_gpu import build, environment

    outside = outside_bytes(request.job, request.card)
    state = folder / "memory"
    return environment.variables(build.installed(), request.card, outside, request.job.num_gpus, state)


def _run(
    requests: list[Request],
    variables: Mapping[str, str],
    timeout: float,
    progress: Progress,
    cancellation: Cancellation,
) -> tuple[Measured, History]:
    inbox: Inbox = queue.Queue()
    deadline = monotonic() + timeout
    children: list[_Child] = []
    results: dict[int, Measured] = {}
    history: History = []
    try:
        for rank_request in requests:
            children.append(cancellation.start(rank_request, inbox, variables))
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
            cancellation.end(child)
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

    def __init__(self, request: Request, inbox: Inbox, variables: Mapping[str, str]) -> None:
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

    def _listen(self, rank: int, inbox: Inbox) -> None:
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

    def kill(self) -> None:
        """Kill the process and its children."""
        if self.process.poll() is None:
            if hasattr(os, "killpg"):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()

    def end(self) -> None:
        """Kill the process and its children, and wait until the GPU's memory is free again."""
        self.kill()
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
