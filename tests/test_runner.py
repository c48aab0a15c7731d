"""The process that runs a probe, seen from its parent: what it says, how it ends, that nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT, card_of, measured_of, spec_of
from vramplan.errors import ConfigError, MissingDependencyError, ProbeError, UnsupportedError, setting
from vramplan.inputs.job import Job
from vramplan.measurements import subprocess_runner
from vramplan.memory.measurement import Peaks, Request, fullest

JOB = Job(micro_batch_size=2)


def request(**changes: Any) -> Request:
    return Request(spec=spec_of("Qwen/Qwen2.5-0.5B"), job=JOB, card=card_of("h100"), device="cpu").model_copy(
        update=changes
    )


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a script in the place of the process that runs steps."""

    def put(script: str) -> None:
        start = "import json, os, sys, time\nrequest = json.loads(sys.stdin.readline())\n"
        monkeypatch.setattr(subprocess_runner, "CHILD", ("-c", start + script))

    return put


def answer(**figures: Any) -> str:
    event = {"event": "result", "measured": measured_of(JOB, **figures).model_dump(mode="json"), "history": []}
    return f"print({json.dumps(event)!r}, flush=True)\n"


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text() if Path("/proc/self").exists() else ""
    except (ProcessLookupError, FileNotFoundError):  # it may end between the two
        return False
    return state.rpartition(")")[2].split()[:1] != ["Z"]


def test_progress_and_a_result(child: Any) -> None:
    child("print(json.dumps({'event': 'progress', 'what': 'half', 'share': 0.5}), flush=True)\n" + answer())
    said: list[tuple[str, float]] = []
    found, history = subprocess_runner.run(request(), 30, lambda what, share: said.append((what, share)))
    assert found == measured_of(JOB)
    assert not history
    assert said == [("half", 0.5)]


def test_the_request_arrives_whole(child: Any) -> None:
    child("assert request['job']['micro_batch_size'] == 2 and request['spec']['model_type'] == 'qwen2'\n" + answer())
    assert subprocess_runner.run(request(), 30)[0].outcome == "ok"


def test_what_a_library_prints_does_no_harm(child: Any) -> None:
    child("print('Loading weights: 100%', flush=True)\n" + answer())
    assert subprocess_runner.run(request(), 30)[0].outcome == "ok"


def test_out_of_memory_is_a_result(child: Any) -> None:
    child(answer(outcome="oom", failed_phase="backward"))
    assert subprocess_runner.run(request(), 30)[0].failed_phase == "backward"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("raise RuntimeError('the model broke')", "ended with code 1: RuntimeError: the model broke"),
        ("sys.exit(3)", "ended with code 3: no error output"),
        ("os.kill(os.getpid(), 9)", r"killed by SIGKILL \(the host's memory may have run out\)"),
        ("os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
        ("print('{\"event\": \"resu', end='', flush=True)", "ended with code 0"),
    ],
)
def test_a_crash_is_one_line(child: Any, script: str, said: str) -> None:
    child(script)
    with pytest.raises(ProbeError, match=said):
        subprocess_runner.run(request(), 30)


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("ConfigError", ConfigError),
        ("UnsupportedError", UnsupportedError),
        ("MissingDependencyError", MissingDependencyError),
        ("UnknownNameError", ConfigError),
        ("CannotRunError", ConfigError),
    ],
)
def test_errors_come_over_as_they_are(child: Any, kind: str, raised: type[Exception]) -> None:
    child(f"print(json.dumps({{'event': 'error', 'kind': {kind!r}, 'line': 'no CUDA'}}), flush=True)")
    with pytest.raises(raised, match=r"^no CUDA$"):
        subprocess_runner.run(request(), 30)


def test_errors_keep_their_settings(child: Any) -> None:
    event = {"event": "error", "kind": "UnsupportedError", "line": f"{setting('strategy', 'fsdp')} is not probed yet"}
    child(f"print({json.dumps(event)!r}, flush=True)")
    with pytest.raises(UnsupportedError, match=r"^strategy=fsdp is not probed yet$") as raised:
        subprocess_runner.run(request(), 30)
    assert (raised.value.field, raised.value.value) == ("strategy", "fsdp")


def test_a_process_that_hangs_is_stopped(child: Any, tmp_path: Path) -> None:
    child(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(100)")
    with pytest.raises(ProbeError, match=r"took more than 3 s and was stopped"):
        subprocess_runner.run(request(), 3)
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    inner = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    script = (  # whoever starts the tests may have had it ignored
        "import signal, sys\nfrom vramplan.measurements import subprocess_runner\n"
        "from tests.test_runner import request\n"
        f"signal.signal(signal.SIGINT, signal.default_int_handler)\nsubprocess_runner.CHILD = ('-c', {inner!r})\n"
        "try:\n    subprocess_runner.run(request(), 60)\nexcept KeyboardInterrupt:\n    sys.exit(130)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    child_process = _wait_for(tmp_path / "pid")
    parent.send_signal(signal.SIGINT)
    assert parent.wait(20) == 130
    deadline = time.monotonic() + 5  # the kernel takes a moment on a loaded machine
    while is_alive(child_process) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(child_process)


def test_the_process_dies_with_its_parent(tmp_path: Path) -> None:
    """However the parent ends: killed, it can do nothing any more."""
    inner = (
        "import os, sys, threading, time; from vramplan.torch_backend.probe import child; sys.stdin.readline();"
        " threading.Thread(target=child._die_with_parent, daemon=True).start();"
        f" open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    )
    script = (
        "from vramplan.measurements import subprocess_runner\nfrom tests.test_runner import request\n"
        f"subprocess_runner.CHILD = ('-c', {inner!r})\nsubprocess_runner.run(request(), 60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    child_process = _wait_for(tmp_path / "pid")
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while is_alive(child_process) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(child_process)


def _wait_for(path: Path) -> int:
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(path.read_text())


# -- several ranks -----------------------------------------------------------------------------------------------------


def test_the_fullest_and_the_slowest_rank_decide() -> None:
    one = measured_of(
        JOB,
        peak_allocated_bytes=10,
        peak_reserved_bytes=20,
        phases={"forward": Peaks(allocated_bytes=10, reserved_bytes=20)},
        step_seconds=(1.0, 5.0),
    )
    other = measured_of(
        JOB,
        peak_allocated_bytes=11,
        peak_reserved_bytes=19,
        phases={"forward": Peaks(allocated_bytes=11, reserved_bytes=19)},
        step_seconds=(2.0, 4.0),
    )
    both = fullest([one, other])
    assert (both.peak_allocated_bytes, both.peak_reserved_bytes) == (11, 20)
    assert both.phases["forward"] == Peaks(allocated_bytes=11, reserved_bytes=20)
    assert both.step_seconds == (2.0, 5.0)
    assert both.process_bytes is None
    failed = measured_of(JOB, outcome="oom", failed_phase="forward")
    assert fullest([one, failed]) is failed


def test_one_rank_without_memory_ends_all(child: Any) -> None:
    """The others wait for it in a collective, and would wait for ever."""
    job = JOB.model_copy(update={"num_gpus": 3})
    child("if request['rank'] != 1: time.sleep(100)\n" + answer(outcome="oom", failed_phase="optimizer"))
    before = time.monotonic()
    assert subprocess_runner.run(request(job=job), 60)[0].failed_phase == "optimizer"
    assert time.monotonic() - before < 30


def test_ranks_get_numbers_and_a_place_to_meet(child: Any) -> None:
    job = JOB.model_copy(update={"num_gpus": 2})
    child(
        "assert request['rank'] == request['local_rank']\n"
        "assert request['meeting_point'].startswith('tcp://127.0.0.1:')\n" + answer(peak_allocated_bytes=1)
    )
    assert subprocess_runner.run(request(job=job), 60)[0].peak_allocated_bytes == 1


def test_under_torchrun_a_process_is_one_rank(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    child("assert (request['rank'], request['local_rank'], request['meeting_point']) == (3, 1, 'env://')\n" + answer())
    assert subprocess_runner.run(request(job=JOB.model_copy(update={"num_gpus": 4})), 30)[0].outcome == "ok"
    with pytest.raises(ConfigError, match="torchrun started 4 ranks, the job has 1; give num_gpus=4"):
        subprocess_runner.run(request(), 30)
