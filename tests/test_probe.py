"""Probes: real steps of real models, on the host where there is no card; the same code runs on one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="probes need the extra vramplan[probe]")

import vramplan  # noqa: E402
from tests.helpers import ROOT, card_of, cli, cli_json  # noqa: E402
from tests.test_trace import SMALL, job_of, small  # noqa: E402
from vramplan.errors import ConfigError, SpecError  # noqa: E402
from vramplan.inputs.gpu import Gpu  # noqa: E402
from vramplan.inputs.model_spec import IMPORT_PATH, ModelSpec  # noqa: E402
from vramplan.measurements import campaign, ledger, matrix, measure, probe, subprocess_runner  # noqa: E402
from vramplan.measurements.matrix import Case  # noqa: E402
from vramplan.memory.measurement import Request  # noqa: E402
from vramplan.memory.overheads import outside_bytes  # noqa: E402
from vramplan.memory.replay import replay  # noqa: E402
from vramplan.units import MiB  # noqa: E402

LLAMA = small("llama", num_key_value_heads=2)
EAGER = {"sequence_length": 32, "attention": "eager"}


def on(card: Gpu | None = None, **settings: Any) -> probe.ProbeDevice:
    return probe.probe_device(card or card_of("rtx4090"), device="cpu", timeout=120, **settings)


def card_with(num_bytes: int) -> Gpu:
    """A card that leaves torch so much."""
    whole = card_of("rtx4090")
    outside = outside_bytes(job_of(), whole)
    return whole.model_copy(update={"cuda_total_bytes": num_bytes + outside, "name": "small"})


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps run here, not in a child: loading torch anew each time would take most of the time."""
    from vramplan.torch_backend.probe import run as real

    monkeypatch.setattr(subprocess_runner, "run", lambda request, timeout, tell, **rest: real.run(request, tell))


# -- what a probe measures ---------------------------------------------------------------------------------------------


def test_a_probe_in_its_own_process() -> None:
    found = probe.probe(LLAMA, on=on(), **EAGER)
    assert found.fits
    assert found.predicted is not None
    assert found.measured.peak_allocated_bytes == pytest.approx(found.predicted.peak_allocated_bytes, rel=0.003)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"micro_batch_size": 2, "gradient_accumulation_steps": 8},
        {"method": "full", "dtype": "fp32", "checkpointing": "none"},
        {"method": "full", "autocast": "none", "optimizer": "sgd_momentum", "loop": "plain"},
        {"batches": "padded", "micro_batch_size": 2},
        {"batches": "packed"},
        {"loss": "sliced", "checkpointing": "none"},
    ],
)
def test_a_probe_agrees_with_the_estimate(given: dict[str, Any]) -> None:
    """The same job, estimated from shapes and run for real (where a CPU does what CUDA does)."""
    found = probe.probe(LLAMA, on=on(), **EAGER, **given)
    run, predicted = found.measured, found.predicted
    assert predicted is not None
    assert found.fits
    assert run.peak_allocated_bytes == pytest.approx(predicted.peak_allocated_bytes, rel=0.003)
    for name, peaks in run.phases.items():
        assert peaks.allocated_bytes == pytest.approx(predicted.phases[name], rel=0.003), name
    assert (run.num_parameters, run.num_trainable_parameters) == (
        predicted.num_parameters,
        predicted.num_trainable_parameters,
    )
    assert len(run.step_seconds) == 3
    assert run.tokens_per_second
    assert run.peak_requested_bytes is not None
    assert run.peak_requested_bytes <= run.peak_allocated_bytes
    assert run.environment.versions["torch"].startswith(torch.__version__.partition("+")[0])


@pytest.mark.usefixtures("in_process")
def test_out_of_memory_names_its_phase(tmp_path: Path) -> None:
    device = on(card_with(24 * MiB), record=tmp_path)
    found = probe.probe(LLAMA, on=device, **EAGER, micro_batch_size=128)
    assert not found.fits
    assert found.measured.failed_phase in ("forward", "backward")
    assert "out of memory. Tried to allocate" in found.measured.message
    assert found.measured.peak_allocated_bytes is None
    assert ledger.load_all(tmp_path) == [found.measured]
    assert found.measured.environment.cap_bytes == 24 * MiB


@pytest.mark.usefixtures("in_process")
def test_a_run_that_cannot_be_saved_is_told_after_the_answer(tmp_path: Path) -> None:
    device = on(record=tmp_path / "file")
    (tmp_path / "file").write_text("")
    assert probe.probe(LLAMA, on=device, **EAGER).fits
    with pytest.raises(ConfigError, match="file: cannot be made"):
        device.check_recorded()


@pytest.mark.usefixtures("in_process")
def test_a_history_replays_to_its_peaks(tmp_path: Path) -> None:
    """Every allocation and free, through the simulated allocator once more: the same peaks."""
    device = on(history=True, record=tmp_path)
    run = probe.probe(LLAMA, on=device, **EAGER).measured
    (saved,) = ledger.load_all(tmp_path)
    events, sizes, blocks = [], [], {}
    for action, address, num_bytes in ledger.load_history(tmp_path, saved):
        if action == "alloc":
            blocks[address] = len(sizes)
            events.append(len(sizes))
            sizes.append(num_bytes)
        elif action == "free_completed":
            events.append(~blocks.pop(address))
    again = replay(events, None, sizes)
    assert len(sizes) > 500
    assert again.peak_reserved_bytes >= run.peak_reserved_bytes  # type: ignore[operator]  # the evaluation is in it
    assert again.peak_allocated_bytes == max(peaks.allocated_bytes for peaks in run.phases.values())


@pytest.mark.usefixtures("in_process")
def test_the_largest_micro_batch(tmp_path: Path) -> None:
    """Found around the estimate's own answer, proved by the next one that fails, and known to the ledger."""
    found = probe.find_max(LLAMA, on=on(card_with(32 * MiB), record=tmp_path), **EAGER)
    assert found.exact
    assert len(found.runs) <= 4
    sizes = {one.job.micro_batch_size: one.fits for one in found.runs}
    assert sizes[found.micro_batch_size]
    assert not sizes[found.micro_batch_size + 1]
    assert list(measure.frontiers(ledger.load_all(tmp_path)).values()) == [found.micro_batch_size]


@pytest.mark.usefixtures("in_process")
def test_a_suggestion_is_proved() -> None:
    device = on(card_with(48 * MiB))
    search = vramplan.suggest(LLAMA, device.gpu, 64, **EAGER)
    found = probe.prove(LLAMA, search, on=device)
    assert found.plan is not None
    assert found.plan.global_batch_size == 64
    assert found.proof is not None
    assert found.proof.measured.outcome == "ok"


@pytest.mark.usefixtures("in_process")
def test_a_model_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probed_model.py").write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = torch.nn.Linear(64, 64)\n"
        "    def forward(self, x, y):\n"
        "        assert y.float().mean() == 3.0, 'the example keeps its values'\n"
        "        return {'loss': self.layer(x).float().pow(2).mean()}\n"
        "def make(micro_batch_size):\n"
        "    return Model(), {'x': torch.randn(micro_batch_size, 64), 'y': torch.full((micro_batch_size,), 3)}\n"
    )
    monkeypatch.chdir(tmp_path)
    spec = ModelSpec(name="probed_model:make", model_type=IMPORT_PATH, config={})
    given = {"method": "full", "dtype": "fp32", "autocast": "none", "checkpointing": "none"}
    found = probe.probe(spec, on=on(), **given, micro_batch_size=4, gradient_accumulation_steps=2)
    assert found.fits
    assert found.measured.num_parameters == 64 * 65


def test_two_ranks_under_ddp() -> None:
    found = probe.probe(LLAMA, on=on(), **EAGER, num_gpus=2, gradient_accumulation_steps=2)
    assert found.fits
    assert found.measured.environment.ranks == 2


STRATEGIES = ("ddp", "fsdp", "zero1", "zero2", "zero3")


@pytest.mark.full
def test_strategies_train(tmp_path: Path) -> None:
    """Two processes of real steps under each, wrapped as on cards: gradients are the same on both."""
    script = "import sys\nfrom tests.test_probe import all_strategies\nall_strategies(sys.argv[1])\n"
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stderr=errors, start_new_session=True
        )
        try:
            code = process.wait(timeout=300)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert code == 0, (tmp_path / "errors").read_text()
    for strategy in STRATEGIES:
        norms = [json.loads((tmp_path / f"{strategy}-{rank}").read_text()) for rank in range(2)]
        assert norms[0] == norms[1], strategy
        assert len(norms[0]) == 2, strategy
        assert min(norms[0]) > 0, strategy


def all_strategies(folder: str) -> None:
    """Two ranks under each strategy, forked from this process: loading torch ten times would take most of the time."""
    import peft  # noqa: F401
    from transformers import LlamaForCausalLM  # noqa: F401

    from vramplan.torch_backend.probe import deepspeed

    for strategy in STRATEGIES:
        if strategy in deepspeed.STAGES:
            deepspeed.load(torch.device("cpu"))
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            point = f"tcp://127.0.0.1:{one.getsockname()[1]}"
        ranks = []
        for rank in range(2):
            if child := os.fork():
                ranks.append(child)
                continue
            code = 1
            try:
                Path(folder, f"{strategy}-{rank}").write_text(json.dumps(norms_of(rank, point, strategy)))
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)  # DeepSpeed's threads may abort as the interpreter ends
        assert [os.waitpid(child, 0)[1] for child in ranks] == [0, 0], strategy


class Nobody:
    """Looks on and sees nothing."""

    def enter(self, phase: str) -> None: ...

    def categorize(self, category: str, values: Any, name: str = "") -> None: ...

    def called(self, name: str) -> Any:
        from contextlib import nullcontext

        return nullcontext()


def norms_of(rank: int, point: str, strategy: str) -> list[float]:
    """One process of `test_strategies_train`: the norms of its gradients in two steps."""
    from vramplan.torch_backend.model import optimizers
    from vramplan.torch_backend.model.build import build
    from vramplan.torch_backend.model.training_loop import Steps
    from vramplan.torch_backend.probe import deepspeed
    from vramplan.torch_backend.probe import distributed as ranks
    from vramplan.torch_backend.probe.random_batches import filler
    from vramplan.torch_backend.suppress_output import quiet

    sharing = {"num_gpus": 2, "strategy": strategy, "gradient_accumulation_steps": 2}
    if strategy.startswith("zero"):
        sharing["autocast"] = "none"
    job = job_of(lora_dtype="bf16", **sharing)
    request = Request(spec=LLAMA, job=job, card=card_of("h100"), device="cpu", rank=rank, meeting_point=point)
    device = torch.device("cpu")
    torch.manual_seed(rank)
    norms: list[float] = []
    with quiet(), ranks.process_group(request, device):
        context = deepspeed.constructor_context(job, device)
        subject = build(LLAMA, job, "meta" if strategy == "fsdp" else "cpu", constructor_context=context)
        model, no_sync = ranks.wrap(subject.module, job, device)
        steps = Steps(subject, job, optimizers.recipe(job), Nobody())
        steps.model, steps.no_sync, steps.fill = model, no_sync, filler(subject, job)
        engine: Any = None
        if strategy in deepspeed.STAGES:
            steps.model = steps.engine = engine = deepspeed.engine_for(steps, job, device)
        step = steps.optimizer.step
        if engine is None:
            steps.optimizer.step = lambda *a, **k: (norms.append(_norm(steps.trained)), step(*a, **k))[1]  # type: ignore[method-assign]
        for _ in range(2):
            steps.run()
            if engine is not None:
                norms.append(float(engine.get_global_grad_norm()))
    return norms


def _norm(weights: Any) -> float:
    total = torch.nn.utils.get_total_norm([p.grad for p in weights])
    return float(total.full_tensor() if hasattr(total, "full_tensor") else total)


# -- a campaign --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_process")
def test_a_campaign_can_be_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "find_model", lambda name: LLAMA if name == "small" else None)
    cases = [Case("small", {**EAGER, "micro_batch_size": n}) for n in (1, 2)]
    cases.append(Case("small", {**EAGER, "loss": "chunked", "method": "full"}, history=True))
    slots = [campaign.Slot("host", on())]

    def left() -> list[campaign.Task]:
        return campaign.left(slots, tmp_path, cases).tasks

    assert [task.case for task in left()] == cases
    (first,) = campaign.run(slots, tmp_path, left()[:1], 300)
    assert first.measured
    assert "allocated" in first.text
    assert "estimate" in first.text
    assert [task.case for task in left()] == cases[1:]
    assert len(list(campaign.run(slots, tmp_path, left(), 300))) == 2
    assert not left()
    with pytest.raises(ConfigError, match="no run has that in its name"):
        measure.matching("nothing like it", cases)


def test_every_run_of_the_matrix_is_a_job() -> None:
    """All of it fits together: models are shipped, settings valid, names tell runs apart."""
    names = [one.name for one in matrix.CASES]
    assert len(set(names)) == len(names) > 30
    for one in matrix.CASES:
        spec, job = one.full_job(card_of("h200"))
        assert vramplan.estimate(spec, "h200", **job.settings).fits or one.find_max


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {"model_type": "llama", "num_key_value_heads": 2, **SMALL}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


HOST = ("--device", "cpu", "--as-card", "rtx4090", "--seq-len", "32", "--attention", "eager")


def test_probe_on_the_command_line(folder: Path, request: pytest.FixtureRequest) -> None:
    done = cli("probe", str(folder), *HOST, "--record", str(folder / "runs"))
    assert done.returncode == 0, done.stderr
    for said in ("micro-batch 1, accumulation 1: ran", "estimate", "measured", "s a step", "Measured with python"):
        assert said in done.stdout, said
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert len(ledger.load_all(folder / "runs")) == 1
    request.getfixturevalue("in_process")
    found = cli_json("probe", str(folder), *HOST, "--find-max", "--micro-batch", "2", "--max-runs", "1")
    assert found["largest_micro_batch_size"] == 2
    assert found["exact"] is False


@pytest.mark.usefixtures("in_process")
def test_suggest_and_prove_on_the_command_line(folder: Path) -> None:
    arguments = ("suggest", str(folder), "--gpu", "rtx4090", "--global-batch", "2", "--seq-len", "32")
    done = cli(*arguments, "--attention", "eager", "--device", "cpu", "--probe")
    assert done.returncode == 0, done.stderr
    assert "Proved by real runs" in done.stdout
    assert "it ran on" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


@pytest.mark.full
def test_under_torchrun(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "vramplan",
         "probe", str(folder), *HOST, "--num-gpus", "2", "--json"],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=180, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["measured"]["environment"]["ranks"] == 2, "one answer, from the first rank"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no GPU to probe: no NVIDIA driver answers here"),
        (("--device", "cpu"), "--device cpu needs --as-card, the GPU whose memory"),
        (("--device", "tpu"), "--device tpu: expected cuda, cpu or emulated"),
        ((*HOST, "--steps", "0"), "--steps 0: expected 1 to 1000"),
        ((*HOST, "--max-runs", "0"), "--max-runs 0: expected 1 or more"),
        ((*HOST, "--timeout", "0"), "--timeout 0: expected seconds above 0"),
        ((*HOST, "--timeout", "0.2"), "the probe took more than 0.2 s and was stopped"),
        ((*HOST, "--history"), "--history needs --record"),
        ((*HOST, "--as-card", "rtx9999"), "'rtx9999'"),
        ((*HOST, "--method", "qlora"), "--quantize nf4 --device cpu: bitsandbytes' kernels for CUDA"),
        ((*HOST, "--num-gpus", "2", "--strategy", "zero2"), "sharded tensors cannot be followed"),
        ((*HOST, "--num-gpus", "2", "--strategy", "fsdp"), "sharded tensors cannot be followed"),
        ((*HOST, "--micro-batch", "0"), "--micro-batch 0"),
    ],
)
def test_bad_input(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    done = cli("probe", str(folder), *arguments, CUDA_VISIBLE_DEVICES="")
    if not arguments and done.returncode == 0:
        pytest.skip("there is a card here")
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("in_process")
def test_a_model_that_fails_says_where(tmp_path: Path) -> None:
    broken = small("llama", num_key_value_heads=3)
    with pytest.raises(SpecError, match="fails: "):
        probe.ProbeDevice(card_of("rtx4090"), "cpu", capped=True, timeout=120).measure(broken, job_of())
