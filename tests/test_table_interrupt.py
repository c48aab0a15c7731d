"""Ctrl-C while worker processes fill a table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers import ROOT

SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever starts the tests may have had it ignored
from vramplan.cli import main
main()
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="a terminal's Ctrl-C reaches a group of processes")
def test_ctrl_c_prints_one_line(tmp_path: Path) -> None:
    """A terminal sends it to the workers too: none of them prints a traceback, all of them end."""
    arguments = ("table", "--models", "qwen*", "--gpus", "rtx4090,h100", "--seq-lens", "1024,2048,8192", "--jobs", "2")
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments, "--no-cache"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while _processes_of(process.pid) < 4 and time.monotonic() < deadline:  # itself, the resource tracker, two workers
        time.sleep(0.02)
    time.sleep(0.5)  # they load what they need
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (130, "", "vramplan: interrupted\n")
    deadline = time.monotonic() + 30
    while _processes_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _processes_of(process.pid)


def _processes_of(group: int) -> int:
    count = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ends while it is looked at
            fields = path.read_text().rpartition(")")[2].split()
            count += int(fields[2]) == group and fields[0] != "Z"
    return count
