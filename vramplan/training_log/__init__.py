"""What a training run's log says of how the run ran out of memory.

    from vramplan.training_log import read_log

    for failure in read_log(Path("train.log")):
        print(failure.rank, failure.phase, failure.figures.requested)

`record` says what is read, `message_forms` lists the messages, `phases` the functions in tracebacks.
"""

from __future__ import annotations

from vramplan.training_log.amount import Amount
from vramplan.training_log.reader import read_log, read_text
from vramplan.training_log.record import Figures, Frame, OutOfMemory, Phase, ProcessMemory, Progress

__all__ = [
    "Amount",
    "Figures",
    "Frame",
    "OutOfMemory",
    "Phase",
    "ProcessMemory",
    "Progress",
    "read_log",
    "read_text",
]
