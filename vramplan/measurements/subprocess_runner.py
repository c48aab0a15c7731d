"""Running a job for real: one child process for each card, bounded in time, gone with its parent."""

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
from time import monotonic
from typing import IO, Any

from vramplan import errors
from vramplan.errors import ConfigError, ProbeError, VramplanError
from vramplan.memory.measurement import UNDER_TORCHRUN, Measured, Request, fullest
from vramplan.progress import Progress, silent

History = list[tuple[str, int, int]]
"""Every (action, address, bytes) of torch's allocator, as torch.cuda.memory._snapshot names them."""

TIMEOUT_SECONDS = 600.0
"""How long a probe may take: building 70 billion random weights and three steps take a minute or two."""
CHILD = ("-m", "vramplan.torch_backend.probe.child")


def run(
    request: Request, timeout_seconds: float = TIMEOUT_SECONDS, progress: Progress = silent
) -> tuple[Measured, History]:
    """Run a job's steps in processes of their own. Running out of memory is a result.

    With several ranks the fullest and the slowest decide; the history is the first rank's. Under torchrun this process
    is one rank of those that torchrun started, elsewhere it starts them all, on this host.

    Raises:
        ProbeError: where a process crashes or takes too long.
        VramplanError: for whatever cannot run, in the words of the process that found out.
    """
    requests = _ranks_here(request)
    inbox: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
    deadline = monotonic() + timeout_seconds
    children: list[_Child] = []
    found: dict[int, Measured] = {}
    history: History = []
    try:
        for one in requests:
            children.append(_Child(one, inbox))
        while len(found) < len(requests):
            try:
                rank, event = inbox.get(timeout=max(0.0, deadline - monotonic()))
            except queue.Empty:
                raise ProbeError(f"the probe took more than {timeout_seconds:g} s and was stopped") from None
            if event is None:
                if rank not in found:
                    raise ProbeError(next(one for one in children if one.rank == rank).last_words())
            elif event["event"] == "progress":
                if rank == requests[0].rank:
                    progress(event["what"], event["share"])
            elif event["event"] == "error":
                raise _error(event)
            else:
                found[rank] = Measured.model_validate_json(json.dumps(event["measured"]))
                if rank == requests[0].rank:
                    history = [(action, address, size) for action, address, size in event["history"]]
                if found[rank].outcome == "oom":  # the others wait for it in vain
                    break
    finally:
        for child in children:
            child.end()
    return fullest(list(found.values())), history


def is_torchrun() -> bool:
    """Whether torchrun started this process as one rank of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def _ranks_here(request: Request) -> list[Request]:
    """What each process that is to be started here has to run.

    Raises:
        ConfigError: where torchrun started another number of ranks than the job has.
    """
    ranks = request.job.num_gpus
    if not is_torchrun():
        point = f"tcp://127.0.0.1:{_free_port()}" if ranks > 1 else None
        return [
            request.model_copy(update={"rank": rank, "local_rank": rank, "meeting_point": point})
            for rank in range(ranks)
        ]
    world, rank, local = (int(os.environ[name]) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"))
    if world != ranks:
        raise ConfigError(f"torchrun started {world} ranks, the job has {ranks}; give --num-gpus {world}")
    return [request.model_copy(update={"rank": rank, "local_rank": local, "meeting_point": UNDER_TORCHRUN})]


class _Child:
    """One process, and the thread that listens to it."""

    def __init__(self, request: Request, inbox: queue.Queue[tuple[int, dict[str, Any] | None]]) -> None:
        self.rank = request.rank
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `end`)
        try:
            self.process = subprocess.Popen(
                [sys.executable, *CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                start_new_session=True,  # Ctrl-C is the parent's to hear
            )
        except OSError as error:
            self.errors.close()
            raise ProbeError(f"no process can be started ({error.strerror})") from error
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: the thread says so
            self.process.stdin.write(request.model_dump_json(exclude_unset=True).encode() + b"\n")
            self.process.stdin.flush()
        threading.Thread(target=self._listen, args=(request.rank, inbox), daemon=True).start()

    def _listen(self, rank: int, inbox: queue.Queue[tuple[int, dict[str, Any] | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):  # cut off in the middle
                inbox.put((rank, json.loads(line)))
        self.process.wait()
        inbox.put((rank, None))

    def last_words(self) -> str:
        """Why it ended without an answer."""
        code = self.process.wait()
        self.errors.seek(0)
        lines = [line for line in self.errors.read().decode(errors="replace").splitlines() if line.strip()]
        if code < 0:
            name = signal.Signals(-code).name
            more = " (the host's memory may have run out)" if name == "SIGKILL" else ""
            return f"the probe's process was killed by {name}{more}"
        return f"the probe's process ended with code {code}: {lines[-1].strip() if lines else 'it said nothing'}"

    def end(self) -> None:
        """Kill it and whatever it started, and wait until the card is free of it."""
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
    """The child's error, as it raised it."""
    kind = getattr(errors, event["kind"], ConfigError)
    if kind is errors.UnknownNameError:  # its message is made, and takes no other form
        kind = ConfigError
    found: VramplanError = kind(event["line"])
    return found


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
