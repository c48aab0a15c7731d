"""Lines of a log, one after another, to records."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from vramplan.dataclass import dataclass
from vramplan.training_log.log_lines import LogLine
from vramplan.training_log.message import has_message, parse_message, parse_warning, sharpen
from vramplan.training_log.phases import phase_of
from vramplan.training_log.programs import framework_of
from vramplan.training_log.progress_lines import after_bar, parse_epoch, parse_progress
from vramplan.training_log.record import Figures, Frame, OutOfMemory, Progress
from vramplan.training_log.traceback_lines import (
    HEADER,
    is_exception,
    is_underline,
    parse_code,
    parse_frame,
    parse_frames,
)

MOST_FRAMES = 400
"""Of one traceback, the last."""
FRAMES = 12
"""Innermost calls of a record."""
WRAPPED_LINES = 12
"""Lines over which a message is looked for: people and editors break it."""
BAR_AFTER = 30
"""Lines after a message in which a bar is looked for if none precedes it: tqdm writes one more as it is closed."""
_BARS = 8
_RANKS = 65_536
_INSIDE = (" ", "\t", "│", "╭", "╰", "-", "|", "Cell In", "<ipython")
"""How lines inside of a traceback begin, IPython's and rich's among them."""


@dataclass(slots=True)
class _Traceback:
    """Calls so far of a rank's traceback."""

    frames: deque[Frame]
    is_open: bool = True
    mixed: bool = False
    """Whether a second traceback began inside of it: the lines of several ranks, without prefixes."""

    def frames_in(self, text: str) -> bool:
        """Whether a line inside of it names a call or begins another traceback."""
        return HEADER in text or (".py" in text and parse_frame(text) is not None)

    def expects_code(self, text: str) -> bool:
        """Whether a line that lost its indentation is the source of the last call, or marks a part of it."""
        if is_exception(text):
            return False
        return is_underline(text) or (bool(self.frames) and not self.frames[-1].code)


@dataclass(slots=True)
class _Message:
    """A message whose further lines are awaited."""

    line: LogLine
    parts: list[str]
    frames: tuple[Frame, ...]
    mixed: bool


class LogParser:
    """Reads lines; :meth:`records` gives the last message of each form, rank and GPU."""

    def __init__(self) -> None:
        self._tracebacks: dict[int | None, _Traceback] = {}
        self._messages: dict[int | None, _Message] = {}
        self._warnings: dict[tuple[int | None, int], Figures] = {}
        self._bars: dict[tuple[str, int | None], Progress] = {}
        self._epoch: float | None = None
        self._records: dict[tuple[str, int | None, int | None], OutOfMemory] = {}
        self._without_bar: set[tuple[str, int | None, int | None]] = set()

    def start_region(self) -> None:
        """What follows does not follow the last line."""
        self._finish_all()
        self._tracebacks.clear()
        self._warnings.clear()

    def records(self) -> list[OutOfMemory]:
        """The records so far, in the log's order."""
        self._finish_all()
        return sorted(self._records.values(), key=lambda record: record.line)

    def feed(self, line: LogLine) -> None:
        """Read a line."""
        if line.rank is not None and line.rank >= _RANKS:
            return
        is_progress = self._read_progress(line)
        text = after_bar(line.text)
        if not text.strip() or (is_progress and text == line.text):
            self._finish(line.rank)
            return
        traceback = self._tracebacks.get(line.rank)
        inside = traceback is not None and traceback.is_open
        if traceback is not None and inside and text.startswith(_INSIDE) and not traceback.frames_in(text):
            self._read_code(traceback, text)
        elif has_message(text):
            self._read_message(LogLine(text, line.rank, line.number))
        elif HEADER in text or (".py" in text and parse_frame(text) is not None):
            self._finish(line.rank)
            self._read_call(line.rank, None if HEADER in text else parse_frame(text))
        elif traceback is not None and inside and traceback.expects_code(text):
            self._read_code(traceback, text)
        else:
            self._read_other(line.rank, text)

    def _read_message(self, line: LogLine) -> None:
        """A message's first line, with the calls before it if the line ends between were lost."""
        self._finish(line.rank)
        frames = parse_frames(line.text) if ".py" in line.text else []
        for frame in frames:
            self._read_call(line.rank, frame)
        traceback = self._tracebacks.get(line.rank)
        calls = tuple(traceback.frames) if traceback is not None and traceback.is_open else ()
        self._messages[line.rank] = _Message(line, [line.text], calls, traceback is not None and traceback.mixed)
        if traceback is not None:
            traceback.is_open = False

    def _read_other(self, rank: int | None, text: str) -> None:
        """A warning, a message's further line, or any other: it ends a traceback."""
        if (warning := parse_warning(text)) is not None:
            self._warnings[rank, warning[0]] = warning[1]
        elif (message := self._messages.get(rank)) is not None:
            message.parts.append(text)
            if len(message.parts) > WRAPPED_LINES:
                self._finish(rank)
        if (traceback := self._tracebacks.get(rank)) is not None:
            traceback.is_open = False

    def _read_progress(self, line: LogLine) -> bool:
        """Whether the line is one of progress."""
        progress, epoch = parse_progress(line.text), parse_epoch(line.text)
        if epoch is not None:
            self._epoch = epoch
        if progress is None:
            return epoch is not None
        self._finish_all()
        self._note_later(progress)
        key = progress.description, progress.total
        self._bars.pop(key, None)
        self._bars[key] = progress
        if len(self._bars) > _BARS:
            del self._bars[next(iter(self._bars))]
        for record in self._without_bar:
            if line.number - self._records[record].line <= BAR_AFTER:
                self._records[record] = replace(self._records[record], progress=(progress,))
        self._without_bar.clear()
        return True

    def _note_later(self, progress: Progress) -> None:
        """Note with the messages before it that training went on: a bar of the same kind counts further, or anew.

        One step is not enough: ranks that did not fail may still end theirs.
        """
        for key, record in self._records.items():
            same = [bar for bar in record.progress if bar.description == progress.description]
            before = next((bar.done for bar in same if bar.total == progress.total), 0)
            if same and progress.done >= before + 2:
                self._records[key] = replace(record, went_on=progress.done)

    def _read_call(self, rank: int | None, frame: Frame | None) -> None:
        """A traceback's header (no frame) or one of its calls."""
        traceback = self._tracebacks.get(rank)
        if traceback is None or (frame is None and not traceback.is_open):
            traceback = self._tracebacks[rank] = _Traceback(deque(maxlen=MOST_FRAMES))
        elif frame is None and traceback.frames:
            traceback.mixed = True
        traceback.is_open = True
        if frame is not None:
            traceback.frames.append(frame)

    def _read_code(self, traceback: _Traceback, text: str) -> None:
        if traceback.frames and not traceback.frames[-1].code:
            last = traceback.frames.pop()
            traceback.frames.append(Frame(last.file, last.function, last.line, parse_code(text)))

    def _finish_all(self) -> None:
        for rank in list(self._messages):
            self._finish(rank)

    def _finish(self, rank: int | None) -> None:
        """Make the record of a rank's message, if one is awaited."""
        message = self._messages.pop(rank, None)
        whole = parse_message(" ".join(message.parts)) if message is not None else None
        if message is None or whole is None:
            return
        form, gpu, figures = whole
        lines = next(n for n in range(1, len(message.parts) + 1) if parse_message(" ".join(message.parts[:n])) == whole)
        warning = self._warnings.get((rank, gpu)) if gpu is not None else None
        key = form.name, rank, gpu
        before = self._records.get(key)
        self._records[key] = OutOfMemory(
            form=form.name,
            memory=form.memory,
            line=message.line.number,
            text=" ".join(" ".join(message.parts[:lines]).split())[:2_000],
            figures=figures if warning is None else sharpen(figures, warning),
            gpu=gpu,
            rank=rank,
            phase=phase_of(message.frames, message.mixed),
            framework=framework_of(message.frames),
            frames=message.frames[-FRAMES:],
            progress=tuple(reversed(self._bars.values())),
            epoch=self._epoch,
            messages=1 if before is None else before.messages + 1,
        )
        (self._without_bar.discard if self._bars else self._without_bar.add)(key)
