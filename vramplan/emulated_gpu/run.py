"""Run a command on emulated GPUs."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from vramplan.dataclass import dataclass
from vramplan.emulated_gpu import build, environment
from vramplan.errors import ConfigError
from vramplan.inputs.gpu import Gpu

SLOTS, SLOT = 256, struct.calcsize("iiN")
"""MAX_PROCESSES and Slot of libraries/memory.c, before the peaks."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended."""

    exit_code: int
    """The command's; 128 more than the signal's number if a signal ended it, as shells say it."""
    peak_bytes: tuple[int, ...]
    """Highest use of each GPU, by all processes, their CUDA contexts included; 0 if nothing used it."""


def run(command: Sequence[str], gpu: Gpu, num_gpus: int, context_bytes: int) -> Finished:
    """Run a command and wait for it; its input and output are this process's.

    Raises:
        ConfigError: if there is no such command.
        VramplanError: if the libraries are not built, or the GPU cannot be emulated.
    """
    libraries = build.installed()
    with tempfile.TemporaryDirectory(prefix="vramplan-") as folder:
        state = Path(folder) / "memory"
        variables = environment.variables(libraries, gpu, context_bytes, num_gpus, state)
        try:
            process = subprocess.Popen(command, env={**os.environ, **variables})
        except OSError as error:
            raise ConfigError(f"{command[0]}: cannot be run ({error.strerror})") from error
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:  # the command gets it, too, and may still have to clean up
                continue
        return Finished(code if code >= 0 else 128 - code, _peaks(state, num_gpus))


def _peaks(state: Path, num_gpus: int) -> tuple[int, ...]:
    try:
        content = state.read_bytes()
    except OSError:  # no process used CUDA
        return (0,) * num_gpus
    return struct.unpack_from(f"{num_gpus}N", content, SLOTS * SLOT)
