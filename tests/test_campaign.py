"""A campaign: runs on all GPUs of a machine at once, what happens when some fail, and how it is taken up again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers import ROOT, cli
from vramplan.errors import ConfigError
from vramplan.inputs import nvml
from vramplan.inputs.job import Job
from vramplan.measurements import campaign, ledger, subprocess_runner
from vramplan.measurements.campaign import Result
from vramplan.measurements.matrix import Case
from vramplan.units import MiB

CHILD = """
import json, os, sys, time
request = json.loads(sys.stdin.readline())
gpus, job = os.environ["CUDA_VISIBLE_DEVICES"].split(","), request["job"]
name = f"{job['micro_batch_size']}.{request['rank']}.{os.getpid()}"
def write(**facts):
    with open(f"{LOG}.{name}", "w") as file:
        json.dump({"gpus": gpus, "job": job, "pid": os.getpid(), **facts}, file)
    os.replace(file.name, os.path.join(LOG, name))  # whole at once: the test may read it as soon as it is there
start = time.monotonic()
write(start=start, end=None)
SCRIPT
peaks = {"backward": {"allocated_bytes": 1 << 30, "reserved_bytes": 2 << 30}}
spec, environment = request["spec"], {"device": "a GPU", "total_bytes": 1, "cap_bytes": request.get("cap_bytes")}
measured = {
    "date": "2026-01-31", "model": spec["name"], "model_type": spec["model_type"], "config": spec["config"],
    "card": request["card"]["name"], "job": job, "environment": environment, "outcome": "ok", "phases": peaks,
    "peak_allocated_bytes": 1 << 30, "peak_reserved_bytes": 2 << 30, "step_seconds": [2.0, 1.0],
}
write(start=start, end=time.monotonic())
print(json.dumps({"event": "result", "measured": measured, "history": []}), flush=True)
"""
"""A process that takes a run's place: it notes which GPUs it was given, and answers with invented figures."""


class FakeNvml:
    """Stands in for pynvml on a machine with several GPUs."""

    class NVMLError(Exception):
        """Its error."""

    def __init__(self, *titles: str) -> None:
        self.titles = titles

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.titles)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        return int(name.removeprefix("GPU-"))

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.titles[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        gib = {"H100": 80, "A100": 40}.get(self.titles[handle].split()[1].partition("-")[0], 24)
        return SimpleNamespace(total=gib * 1024 * MiB, used=900 * MiB)


H100, RTX4090 = "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Puts GPUs into this machine, and a script into the place of the process that runs steps; returns its log."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(*titles: str, script: str = "") -> Path:
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*titles))
        log = tmp_path / "log"
        log.mkdir(exist_ok=True)
        code = f"LOG = {str(log)!r}\n" + CHILD.replace("SCRIPT", script)
        monkeypatch.setattr(subprocess_runner, "CHILD", ("-c", code))
        return log

    return put


def cases(*batches: int, **settings: Any) -> list[Case]:
    job = {"sequence_length": 64, **settings}
    return [Case("qwen2.5-0.5b", {"micro_batch_size": batch, **job}) for batch in batches]


def run(folder: Path, matrix: list[Case], seconds: float = 100, **options: Any) -> list[Result]:
    slots, _ = campaign.slots(**options)
    return list(campaign.run(slots, folder, campaign.left(slots, folder, matrix).tasks, seconds))


def logged(log: Path) -> list[dict[str, Any]]:
    return sorted((json.loads(path.read_text()) for path in log.iterdir()), key=lambda fact: fact["start"])


# -- the GPUs of a machine ---------------------------------------------------------------------------------------------


def test_the_gpus_of_a_machine(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(H100, H100, RTX4090)
    assert nvml.visible_gpus() == ["GPU-0", "GPU-1", "GPU-2"]
    slots, _ = campaign.slots()
    assert [(slot.name, slot.device.gpus, slot.device.gpu.name) for slot in slots] == [
        ("GPU 0", ("GPU-0",), "h100-sxm"), ("GPU 1", ("GPU-1",), "h100-sxm"), ("GPU 2", ("GPU-2",), "rtx4090"),
    ]  # fmt: skip
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-1")
    assert [slot.device.gpus for slot in campaign.slots()[0]] == [("GPU-2",), ("GPU-1",)]
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES hides every GPU"):
            campaign.slots()


def test_a_gpu_that_is_too_small_is_left_out(machine: Any) -> None:
    machine(RTX4090, H100)
    slots, left_out = campaign.slots("a100-40gb")
    assert [slot.name for slot in slots] == ["GPU 1"]
    assert "the RTX 4090 here has" in left_out[0].replace("NVIDIA GeForce ", "")
    machine(RTX4090, RTX4090)
    with pytest.raises(ConfigError, match=r"needs 39\.49 GiB"):
        campaign.slots("a100-40gb")


def test_a_gpu_stands_in_for_smaller_ones_only(machine: Any) -> None:
    machine("NVIDIA A100-SXM4-40GB")
    (slot,), _ = campaign.slots()
    assert not slot.device.standing_in_for("a100-40gb").capped, "by any of its names it is itself"
    assert slot.device.standing_in_for("rtx4090").cap_bytes(Job()) is not None
    with pytest.raises(ConfigError, match="gpu=h100-sxm: needs"):
        slot.device.standing_in_for("h100")


# -- runs --------------------------------------------------------------------------------------------------------------


def test_every_gpu_is_used_at_once(machine: Any, tmp_path: Path) -> None:
    log = machine(H100, H100, script="time.sleep(0.6)")
    results = run(tmp_path / "runs", cases(1, 2, 3, 4))
    assert [result.measured for result in results] == [True] * 4
    assert "allocated 1.000 GiB (estimate" in results[0].text
    runs = logged(log)
    assert {fact["gpus"][0] for fact in runs} == {"GPU-0", "GPU-1"}
    assert [fact["job"]["micro_batch_size"] for fact in runs[:2]] in ([1, 2], [2, 1])
    assert runs[1]["start"] < runs[0]["end"], "two at a time"
    for gpu in ("GPU-0", "GPU-1"):
        mine = [fact for fact in runs if fact["gpus"] == [gpu]]
        assert all(later["start"] > earlier["end"] for earlier, later in pairwise(mine))
    assert not run(tmp_path / "runs", cases(1, 2, 3, 4)), "nothing is left"
    assert [result.name for result in run(tmp_path / "runs", cases(1, 5))] == [cases(5)[0].name]


def test_a_job_of_several_gpus_takes_as_many(machine: Any, tmp_path: Path) -> None:
    log = machine(H100, H100, RTX4090, script="time.sleep(0.3)")
    matrix = [*cases(1), *cases(2, num_gpus=2), *cases(3)]
    slots, _ = campaign.slots()
    left = campaign.left(slots, tmp_path, matrix)
    assert left.skipped == ["qwen2.5-0.5b micro_batch=2 sequence_length=64 num_gpus=2: skipped, needs 2 GPUs,"
                            " 1 such GPU here"]  # fmt: skip
    assert [task.kind.split()[0] for task in left.tasks] == ["h100-sxm", "rtx4090", "h100-sxm", "h100-sxm", "rtx4090"]
    results = list(campaign.run(slots, tmp_path / "runs", left.tasks, 100))
    assert all(result.measured for result in results), results
    assert ("GPU 0", "GPU 1") in {result.slots for result in results}
    ranks = [fact for fact in logged(log) if fact["job"].get("num_gpus") == 2]
    assert [fact["gpus"] for fact in ranks] == [["GPU-0", "GPU-1"]] * 2, "each rank sees both"
    (last,) = [f for f in logged(log) if f["job"]["micro_batch_size"] == 3 and f["gpus"] != ["GPU-2"]]
    assert last["start"] > ranks[0]["start"], "jobs of one GPU do not overtake it for ever"


def test_runs_that_fail_do_not_stop_the_others(machine: Any, tmp_path: Path) -> None:
    crash = "if job['micro_batch_size'] == 1: raise RuntimeError('the driver went away')\n"
    hang = "if job['micro_batch_size'] == 2: time.sleep(100)\n"
    machine(H100, H100, script=crash + hang)
    results = {result.name.split()[1]: result for result in run(tmp_path / "runs", cases(1, 2, 3, 4), timeout=3)}
    assert {name: result.measured for name, result in results.items()} == {
        "micro_batch=1": False, "micro_batch=2": False, "micro_batch=3": True, "micro_batch=4": True,
    }  # fmt: skip
    assert "RuntimeError: the driver went away" in results["micro_batch=1"].text
    assert "took more than 3 s and was stopped" in results["micro_batch=2"].text
    assert len(ledger.load_all(tmp_path / "runs")) == 2


def test_a_defect_of_one_run_is_its_own(machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(H100)
    estimates = iter([KeyError("rows"), None])

    def predict(*_: Any) -> None:
        error = next(estimates)
        if error:
            raise error

    monkeypatch.setattr("vramplan.measurements.probe.ProbeDevice.predict", predict)
    monkeypatch.setattr("vramplan.measurements.probe.ProbeDevice._utilization", lambda *_: None)
    first, second = run(tmp_path / "runs", cases(1, 2))
    assert (first.measured, first.text) == (False, "KeyError: 'rows'")
    assert second.measured


def test_time_ends_a_campaign(machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(H100, script="time.sleep(100)")
    monkeypatch.setattr(campaign, "MIN_SECONDS", 1.0)
    before = time.monotonic()
    (result,) = run(tmp_path / "runs", cases(1, 2), seconds=2)
    assert "was stopped" in result.text
    assert time.monotonic() - before < 20
    assert not run(tmp_path / "runs", cases(1, 2), seconds=0.5), "no run is started"


def test_a_search_for_the_largest_batch_is_taken_up_again(machine: Any, tmp_path: Path) -> None:
    search = [Case("qwen2.5-0.5b", {"sequence_length": 64}, as_gpu="rtx4090", find_max=True)]
    log = machine(H100, script="if len(os.listdir(LOG)) == 3: raise RuntimeError('the driver went away')")

    def batches() -> list[int]:
        return [fact["job"]["micro_batch_size"] for fact in logged(log)]

    (first,) = run(tmp_path / "runs", search)
    assert not first.measured
    ran = batches()[:2]
    machine(H100)
    (second,) = run(tmp_path / "runs", search)
    assert second.text.endswith(", perhaps more")
    assert batches()[3] == batches()[2], "the run that failed comes next"
    assert len({*ran} & {*batches()[3:]}) == 0, "what ran before is not run again"
    count = len(batches())
    run(tmp_path / "runs", search)
    assert len(batches()) > count == len({*batches()[:count]}) + 1, "it goes on where it ended"


def test_closing_it_ends_all_processes(machine: Any, tmp_path: Path) -> None:
    log = machine(H100, H100, H100, script="if job['micro_batch_size'] > 1: time.sleep(100)")
    slots, _ = campaign.slots()
    tasks = campaign.left(slots, tmp_path, cases(1, 2, 3, 4)).tasks
    with closing(campaign.run(slots, tmp_path / "runs", tasks, 100)) as results:
        assert next(results).measured
        while len([*log.iterdir()]) < 3:
            time.sleep(0.05)
    for fact in logged(log):
        with pytest.raises(ProcessLookupError):
            os.kill(fact["pid"], 0)


def test_ctrl_c_ends_all_processes(machine: Any, tmp_path: Path) -> None:
    log = machine(H100, script="time.sleep(100)")
    script = (
        "import signal, sys\nfrom tests.test_campaign import *\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.modules['pynvml'] = FakeNvml(H100, H100)\nsubprocess_runner.CHILD = {subprocess_runner.CHILD!r}\n"
        f"sys.argv = ['vramplan', 'measure', '--out', {str(tmp_path / 'runs')!r}]\n"
        "from vramplan.cli import main\nmain()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while len([*log.iterdir()]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.send_signal(signal.SIGINT)
    _, errors = parent.communicate(timeout=20)
    assert parent.returncode == 130
    assert errors == "vramplan: interrupted\n"
    for path in log.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.name.rpartition(".")[2]), 0)


# -- the command line --------------------------------------------------------------------------------------------------


def test_measure_on_the_command_line(machine: Any, tmp_path: Path) -> None:
    machine(H100, H100)
    arguments = ("measure", "--out", str(tmp_path / "runs"), "--only", "0.5b.*512|2.5-0.5b.*accumulation")
    done = cli(*arguments)
    assert done.returncode == 0, done.stderr
    assert "GPU 1: qwen2.5-0.5b" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "Nothing is left" in cli(*arguments).stdout


def test_under_torchrun(tmp_path: Path) -> None:
    done = cli("measure", "--out", str(tmp_path), TORCHELASTIC_RUN_ID="x", WORLD_SIZE="2")
    assert done.returncode == 2
    assert "measure starts its runs itself" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--minutes", "0.1"), "--minutes 0.1: a run takes 25 seconds at least"),
        (("--only", "("), "--only '(': invalid regular expression"),
        (("--timeout", "0"), "--timeout 0: expected seconds above 0"),
        (("--as-card", "b200"), "--as-card b200: needs"),
        (("--out", "{broken}"), "is measured again"),
        (("--out", "{file}"), "cannot be made (File exists)"),
    ],
)
def test_bad_input(machine: Any, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    machine(H100)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    (tmp_path / "file").touch()
    words = [word.format(broken=tmp_path / "broken", file=tmp_path / "file") for word in arguments]
    done = cli("measure", "--out", str(tmp_path / "runs"), *words)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
