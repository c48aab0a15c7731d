"""What is read from a log: one record for each rank and kind of message, without conclusions."""

from __future__ import annotations

from typing import Literal

from vramplan.dataclass import dataclass
from vramplan.training_log.amount import Amount

Memory = Literal["gpu", "host"]
"""Whose memory ran out."""
Phase = Literal[
    "saving",
    "loading",
    "evaluation",
    "generation",
    "optimizer states",
    "gradient clipping",
    "optimizer step",
    "backward",
    "loss",
    "forward",
    "preparation",
    "moving a batch",
    "moving the model",
]
"""What the run did. "optimizer states" is their creation, "preparation" the wrapping by a strategy before the first
step, "saving" that of a checkpoint with its gathering."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of one process on the GPU, which includes its CUDA context and libraries."""

    pid: int | None
    """Process id as the driver counts them, which in a container is none of the container's; None for the process that
    ran out of memory."""
    used: Amount | None
    """None if the driver does not tell (Windows, WSL)."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Sizes of a message; None for those that it lacks, and that a cut message lost."""

    requested: Amount | None = None
    """What was asked of CUDA: with PyTorch's allocator a whole segment (2 MiB, 20 MiB or multiples of 2 MiB), with
    cudaMallocAsync and on the host the tensor itself."""
    capacity: Amount | None = None
    """The GPU's total."""
    free: Amount | None = None
    """Of the GPU, as CUDA tells."""
    allowed: Amount | None = None
    """The process's limit by its memory fraction."""
    allocated: Amount | None = None
    """In use by tensors. Without :attr:`free_in_private_pools`, which PyTorch adds to the number that it prints."""
    unallocated: Amount | None = None
    """Reserved by PyTorch and not in use, without private pools: fragmentation, as the caches were emptied before."""
    free_in_private_pools: Amount | None = None
    """Reserved by memory pools of their own (CUDA graphs) and not in use: other tensors cannot have it."""
    reserved: Amount | None = None
    """Segments of PyTorch's allocator in total."""
    other_allocations: Amount | None = None
    """Of the process, without PyTorch's allocator; only MPS tells it."""
    processes: tuple[ProcessMemory, ...] = ()
    """Processes on the GPU; empty where the driver does not list them (PyTorch before 2.1, ROCm)."""

    @property
    def own_process(self) -> Amount | None:
        """All memory of the process that ran out, if the message names it."""
        return next((process.used for process in self.processes if process.pid is None), None)

    @property
    def outside_allocator(self) -> Amount | None:
        """Memory of the own process that PyTorch's allocator does not have: context, NCCL, libraries."""
        if self.own_process is None or self.reserved is None:
            return None
        return self.own_process - self.reserved

    @property
    def outside_pytorch(self) -> Amount | None:
        """Memory in use on the GPU that this process's allocator does not have, that of other processes included."""
        if self.capacity is None or self.free is None or self.reserved is None:
            return None
        return self.capacity - self.free - self.reserved


@dataclass(frozen=True, slots=True)
class Frame:
    """One call of a traceback."""

    file: str
    """Path with forward slashes."""
    function: str
    """Without its class."""
    line: int | None = None
    code: str = ""
    """The line of source below, as printed; empty if none is."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A progress bar or line."""

    done: int
    total: int | None = None
    description: str = ""
    """What stands before the bar."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The last message of one kind, rank and GPU."""

    form: str
    """Name of the message's form in `message_forms`."""
    memory: Memory
    line: int
    """Of the message in the log, from 1."""
    text: str
    """The message without prefixes, on one line."""
    figures: Figures = Figures()
    gpu: int | None = None
    """The GPU's index for the process (after CUDA_VISIBLE_DEVICES)."""
    rank: int | None = None
    """From the line's prefix, None without one: of all processes (PyTorch's ``[rank3]``), else of the node (torchrun)
    or the task's number (srun, mpirun)."""
    phase: Phase | None = None
    """None if no traceback precedes the message, its functions tell nothing, or several ranks' lines are mixed."""
    framework: str = ""
    """The training framework whose calls are in the traceback: llamafactory, axolotl, ms-swift, trl ...; empty if none
    are."""
    frames: tuple[Frame, ...] = ()
    """The traceback's innermost calls, innermost last."""
    progress: tuple[Progress, ...] = ()
    """Nearest first; of each bar the latest."""
    epoch: float | None = None
    """Of the nearest line of Trainer's log."""
    went_on: int | None = None
    """Steps that a bar counted later in the log: the run went on after this message. None if it shows none."""
    messages: int = 1
    """How many messages of this kind, rank and GPU were parsed; one failure often prints several."""
