"""Logs: real ones of emulated GPUs, and the shapes in which people have them."""

from __future__ import annotations

import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers import ROOT
from vramplan.errors import ConfigError
from vramplan.training_log import Frame, OutOfMemory, Progress, read_log, read_text, reader
from vramplan.training_log.log_lines import split_prefix
from vramplan.training_log.phases import ROWS, PhaseRow, phase_of
from vramplan.training_log.progress_lines import parse_progress
from vramplan.training_log.traceback_lines import parse_frame

LOGS = ROOT / "tests" / "oom_logs"
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 34.00 MiB. GPU 1 has a total capacity of 23.64 GiB "
    "of which 21.00 MiB is free. Including non-PyTorch memory, this process has 23.61 GiB memory in use. Of the "
    "allocated memory 22.50 GiB is allocated by PyTorch, and 640.00 MiB is reserved by PyTorch but unallocated."
)
TRACEBACK = """\
Traceback (most recent call last):
  File "/home/a/train.py", line 30, in <module>
    trainer.train()
  File "/venv/lib/python3.11/site-packages/torch/_tensor.py", line 521, in backward
    torch.autograd.backward(
"""


def only(text: str) -> OutOfMemory:
    (record,) = read_text(text)
    return record


@pytest.mark.parametrize(
    ("log", "phase", "progress", "epoch", "requested"),
    [
        ("forward", "forward", Progress(0, 4), None, 512 << 20),
        ("loss", "loss", Progress(0, 4), None, 13 * 2048 * 32000 * 4),
        ("backward", "backward", Progress(0, 4), None, 12 * 2048 * 32000 * 4),
        ("optimizer_states", "optimizer states", Progress(0, 4), None, 64 << 20),
        ("evaluation", "evaluation", Progress(2, 4), 0.125, 64 * 2048 * 32000 * 4),
    ],
)
def test_real_logs(log: str, phase: str, progress: Progress, epoch: float | None, requested: int) -> None:
    (record,) = read_log(LOGS / f"{log}.txt")
    assert (record.phase, record.gpu, record.rank, record.messages) == (phase, 0, None, 1)
    assert (record.progress[0], record.epoch) == (progress, epoch)
    figures = record.figures
    assert figures.requested is not None
    assert figures.capacity is not None
    assert figures.free is not None
    assert figures.outside_allocator is not None
    assert figures.requested.half_width == 0  # PyTorch 2.13 warns with exact sizes
    segment = -(-requested // (2 << 20)) * (2 << 20)
    assert figures.requested.num_bytes == segment
    assert figures.capacity.num_bytes == 12_488_540_160
    assert figures.own_process is not None
    assert (figures.capacity - figures.free).low <= figures.own_process.high
    assert 100 << 20 < figures.outside_allocator.num_bytes < 200 << 20  # the context
    assert record.frames[-1].file.endswith("torch/_ops.py")
    assert record.frames[-1].code == "return self._op(*args, **kwargs)"


def test_two_ranks() -> None:
    records = read_log(LOGS / "two_ranks.txt")
    assert {(record.rank, record.gpu, record.phase) for record in records} == {(0, 0, "forward"), (1, 1, "forward")}
    assert len(records) == 2
    assert all(record.figures.free and record.figures.free.half_width == 0 for record in records)


def test_memory_fraction_and_expandable_segments() -> None:
    (limited,) = read_log(LOGS / "memory_fraction.txt")
    assert limited.figures.allowed is not None
    assert limited.figures.allowed.allows(12_488_540_160 // 2)
    (mapped,) = read_log(LOGS / "expandable_segments.txt")
    assert mapped.figures.requested is not None
    assert mapped.figures.requested.half_width  # the warning's size is that of a page
    assert mapped.figures.capacity is not None
    assert mapped.figures.capacity.half_width == 0


def test_a_pasted_message_alone() -> None:
    record = only(MESSAGE)
    assert (record.line, record.phase, record.frames, record.progress, record.epoch) == (1, None, (), (), None)
    assert record.text == MESSAGE


def test_a_bar_after_the_message_counts_if_none_precedes_it() -> None:
    assert only(f"{MESSAGE}\n  1%|1    | 27/2000 [01:00<50:00,  2.00s/it]\n").progress == (Progress(27, 2000),)
    far = "\n".join(["text"] * 40)
    assert only(f"{MESSAGE}\n{far}\n  1%|1    | 27/2000 [01:00<50:00,  2.00s/it]\n").progress == ()


def test_nearest_bar_first_and_no_bars_that_count_no_steps() -> None:
    text = (
        "Loading checkpoint shards: 100%|####| 4/4 [00:01<00:00,  4.00it/s]\n"
        "  3%|3   | 12/400 [00:10<05:00,  1.00s/it]\r  3%|3   | 13/400 [00:11<05:00,  1.00s/it]\n"
        "{'loss': '1.2', 'grad_norm': '0.3', 'learning_rate': '1e-4', 'epoch': '0.25'}\n"
        "\x1b[32mEpoch 1:\x1b[0m  50%|##  | 5/10 [00:10<00:10,  1.00s/it]\n"
        "Map: 10%|#   | 1/10 [00:10<00:10,  1.00 examples/s]\n"
    )
    record = only(text + TRACEBACK + MESSAGE)
    assert record.progress == (Progress(5, 10, "Epoch 1"), Progress(13, 400))
    assert (record.epoch, record.phase, record.line) == (0.25, "backward", 11)


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        (" iteration       12/     400 | consumed samples: 96 |", Progress(12, 400)),
        ("[2024-01-01 00:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1]", Progress(10)),
        ("[titan] 2025-01-01 - root - INFO - step:  7  loss:  8.1  memory: 20.00GiB", Progress(7)),
        ("12it [00:10,  1.00it/s]", None),
        ("100%|", None),
        ("0%|", None),
    ],
)
def test_lines_of_progress(line: str, progress: Progress | None) -> None:
    assert parse_progress(line) == progress


@pytest.mark.parametrize(
    ("line", "bare", "rank"),
    [
        ("[rank3]: a", "a", 3),
        ("[rank3]:[W1 a", "[W1 a", 3),
        ("[default5]:[rank13]: a", "a", 13),
        ("[default5]:a", "a", 5),
        ("1129:[rank2]:   File", "  File", 2),
        ("7:   File", "  File", 7),
        ("0: a", "a", 0),
        ("[1,4]<stderr>:a", "a", 4),
        ("(RayTrainWorker pid=12, ip=10.0.0.1) [rank1]:   File", "  File", 1),
        ("(EngineCore_0 pid=62) ERROR 03-19 11:14:31 [core.py:700] a", "a", None),
        ("2024-01-01T10:00:00.000Z   File", "  File", None),
        ("  File", "  File", None),
        ("[epoch3] a", "[epoch3] a", None),
    ],
)
def test_prefixes(line: str, bare: str, rank: int | None) -> None:
    assert split_prefix(line) == (bare, rank)


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        ('  File "/a b/c.py", line 3, in run', Frame("/a b/c.py", "run", 3)),
        ('  File "C:\\Program Files\\torch\\nn\\x.py", line 3, in f', Frame("C:/Program Files/torch/nn/x.py", "f", 3)),
        ("File /a/torch/_tensor.py:521, in Tensor.backward(self, g)", Frame("/a/torch/_tensor.py", "backward", 521)),
        ("/a/torch/_tensor.py in backward(self, gradient)", Frame("/a/torch/_tensor.py", "backward")),
        ("│ /a/torch/_tensor.py:521 in backward     │", Frame("/a/torch/_tensor.py", "backward", 521)),
        ("the file a.py is in the folder", None),
        ("a.py", None),
    ],
)
def test_calls(line: str, frame: Frame | None) -> None:
    assert parse_frame(line) == frame


def test_notebook() -> None:
    text = (
        "---------------------------------------------------------------------------\n"
        "OutOfMemoryError                          Traceback (most recent call last)\n"
        "Cell In[5], line 1\n----> 1 trainer.train()\n\n"
        "File /opt/torch/_tensor.py:521, in Tensor.backward(self, gradient)\n"
        "    520 x\n--> 521 torch.autograd.backward(\n\n" + MESSAGE.removeprefix("torch.")
    )
    record = only(text)
    assert (record.phase, record.line) == ("backward", 10)


def test_rich_traceback() -> None:
    text = (
        "╭──── Traceback (most recent call last) ────╮\n"
        "│ /opt/transformers/trainer.py:2043 in evaluate      │\n│ ❱ 2043  x = y   │\n╰────────╯\n"
    )
    record = only(text + MESSAGE)
    assert (record.phase, record.frames[-1].code) == ("evaluation", "2043  x = y")


def test_ranks_without_prefixes_are_mixed() -> None:
    other = TRACEBACK.replace("_tensor.py", "optim/adamw.py").replace("in backward", "in step")
    lines = [*TRACEBACK.splitlines(), *other.splitlines(), MESSAGE.replace("GPU 1", "GPU 0"), MESSAGE]
    assert [record.phase for record in read_text("\n".join(lines))] == [None, None]
    same = [*TRACEBACK.splitlines(), *TRACEBACK.splitlines(), MESSAGE]
    assert only("\n".join(same)).phase == "backward"


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(line.strip() for line in TRACEBACK.splitlines()) + "\n" + MESSAGE,
        "".join(f"> {line}\n" for line in [*TRACEBACK.splitlines(), MESSAGE]),
        " ".join(TRACEBACK.split()) + " " + MESSAGE,
        "  0%|   | 0/4 [00:00<?, ?it/s]" + TRACEBACK + MESSAGE,
        TRACEBACK + "    ^^^^^^^^\n  50%|##  | 2/4 [00:10<00:10,  1.00s/it]\n" + MESSAGE,
    ],
    ids=["no indentation", "quoted", "one line", "after a bar", "a bar inside"],
)
def test_pasted_tracebacks(text: str) -> None:
    record = only(text)
    assert (record.phase, record.frames[-1].function, len(record.frames)) == ("backward", "backward", 2)


def test_a_traceback_behind_a_bar_is_a_new_one() -> None:
    text = TRACEBACK + "ValueError: x\n  0%|   | 0/4 [00:00<?, ?it/s]" + TRACEBACK.replace("_tensor", "other") + MESSAGE
    record = only(text)
    assert (record.phase, len(record.frames)) == (None, 2)


def test_a_kill_after_a_traceback_has_no_calls() -> None:
    text = TRACEBACK + "ValueError: x\nnode: exits with return code = -9\n"
    record = only(text)
    assert (record.memory, record.phase, record.frames) == ("host", None, ())


def test_the_last_message_of_a_rank_and_how_many() -> None:
    first = MESSAGE.replace("34.00 MiB", "10.00 MiB")
    record = only(f"{first}\n{first}\n{MESSAGE}\n")
    assert record.messages == 3
    assert record.figures.requested is not None
    assert record.figures.requested.num_bytes == 34 << 20


def test_a_message_in_a_line_of_source_is_none() -> None:
    text = TRACEBACK + "    if 'CUDA out of memory. Tried to allocate ' in str(error):\nValueError: x\n"
    assert read_text(text) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.phase} {row.file}")
def test_functions_of_phases_exist(row: PhaseRow) -> None:
    package, *parts = row.file.split("/")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    path = Path(spec.origin).parent.joinpath(*parts)
    files = [*path.glob("*.py"), *path.glob("llama/*.py")] if row.file.endswith("/") else [path]
    source = "\n".join(file.read_text(encoding="utf-8") for file in files)
    assert [
        name for name in row.functions.split() if f"def {name}(" not in source and f"def {name}[" not in source
    ] == []


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        ([("deepspeed/runtime/engine.py", "backward"), ("accelerate/accelerator.py", "backward")], "backward"),
        ([("accelerate/accelerator.py", "backward"), ("deepspeed/runtime/engine.py", "step")], "optimizer step"),
        ([("torch/_tensor.py", "backward"), ("torch/nn/modules/module.py", "_call_impl")], "backward"),
        ([("transformers/trainer.py", "save_model"), ("deepspeed/runtime/engine.py", "x")], "saving"),
        ([("deepspeed/__init__.py", "initialize"), ("torch/nn/modules/module.py", "to")], "preparation"),
        ([("my_torch/_tensor.py", "x"), ("own.py", "backward")], None),
    ],
)
def test_phases(frames: list[tuple[str, str]], phase: str | None) -> None:
    assert phase_of([Frame(f"/lib/{file}", function) for file, function in frames]) == phase


def test_a_large_log_is_parsed_around_its_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("PIECE", 4096), ("BEFORE", 2048), ("AFTER", 1024)):
        monkeypatch.setattr(reader, name, size)
    bar = "  3%|3   | 12/400 [00:10<05:00,  1.00s/it]\n"
    log = tmp_path / "train.log"
    for shift in range(0, 4096, 389):  # also a message on the border of two pieces
        filling = "".join(f"line {number:06}\n" for number in range(1000)) + "x" * shift + "\n"
        text = filling + bar + TRACEBACK + MESSAGE + "\n" + filling
        log.write_text(text, encoding="utf-8")
        (record,) = read_log(log)
        assert (record.phase, record.line) == ("backward", 1 + text[: text.index("torch.Out")].count("\n"))
        assert record.progress == (Progress(12, 400),)


def test_only_the_last_part_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_PARSED", 4096)
    monkeypatch.setattr(reader, "BEFORE", 1024)
    log = tmp_path / "train.log"
    log.write_text(f"{MESSAGE}\n" * 1000, encoding="utf-8")
    (record,) = read_log(log)
    assert record.line == 1000
    assert 8 <= record.messages <= 13  # of 1,000


def test_utf16(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("\ufeff" + TRACEBACK + MESSAGE, encoding="utf-16-le")
    (record,) = read_log(log)
    assert (record.phase, record.line) == ("backward", 6)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(b"\xff\xff\x00" * 1000 + b"\n" + MESSAGE.encode() + b"\n")
    assert [record.gpu for record in read_log(log)] == [1]
    log.write_bytes(b"nothing here\n")
    assert read_log(log) == []


def test_unreadable(tmp_path: Path) -> None:
    empty = tmp_path / "empty.log"
    empty.write_bytes(b"")
    for path, reason in ((empty, "is empty"), (tmp_path, "is a folder"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(ConfigError, match=reason):
            read_log(path)


def test_no_text_breaks_the_parser() -> None:
    parts = [
        *TRACEBACK.splitlines(keepends=True), MESSAGE[:90], MESSAGE[90:], "\n", "\r", "  0%|   | 0/4 [00:00<?, ?it/s]",
        "%|", "[rank1]: ", "\x1b[31m", "> ", "'epoch': 0.5", "exits with return code = -9", "│", "\x00", "\ud800", "]",
    ]  # fmt: skip
    chance = random.Random(0)
    for _ in range(3000):
        for record in read_text("".join(chance.choices(parts, k=chance.randrange(1, 14)))):
            assert record.line >= 1
            assert record.messages >= 1
