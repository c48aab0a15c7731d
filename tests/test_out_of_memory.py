"""Why a run ran out of memory: logs of PyTorch's own allocator, held against the simulated step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import ROOT, cli, cli_json
from vramplan.errors import ConfigError
from vramplan.memory.allocator import segment_bytes
from vramplan.memory.replay import replay
from vramplan.planner.out_of_memory.causes import causes
from vramplan.training_log import read_text
from vramplan.units import GiB, MiB

LOGS = ROOT / "tests" / "oom_logs"
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
}
"""Of tests/oom_logs/train.py."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


def configuration(model: Path, folder: Path, micro_batch: int) -> Path:
    arguments = {"model_name_or_path": str(model), "output_dir": "out", "bf16": True, "dtype": "float32"}
    file = folder / "train.json"
    file.write_text(json.dumps({**arguments, "per_device_train_batch_size": micro_batch, "max_steps": 4}))
    return file


@pytest.mark.parametrize(
    ("log", "micro_batch", "label", "formula", "length"),
    [
        ("forward", 64, "layers.*.mlp.gate_proj", "64 x 2048 x 2048 bf16", 2048),
        ("loss", 13, "loss log-probabilities", "26624 x 32000 fp32", 2048),
        ("backward", 12, "loss gradient of the logits", "24576 x 32000 fp32", 2048),
        ("shorter_samples", 18, "loss log-probabilities", "27648 x 32000 fp32", 1536),
    ],
)
def test_the_tensor_is_the_one_that_pytorch_asked_for(
    model: Path, tmp_path: Path, log: str, micro_batch: int, label: str, formula: str, length: int
) -> None:
    """The batch and length of each run are those of the commands in tests/oom_logs/README.md."""
    config = configuration(model, tmp_path, micro_batch)
    found = vramplan.explain(LOGS / f"{log}.txt", config, sequence_length=2048)
    assert found.gpu is not None
    assert found.gpu.name == "rtx3060-12gb"
    assert found.verdict is not None
    assert not found.verdict.fits
    assert found.verdict.plan is not None
    assert found.allocation is not None
    assert found.allocation.label.startswith(label)
    assert found.allocation.formula == formula
    assert found.allocation.sequence_length == length
    used = found.failure.figures.allocated
    assert used is not None
    limit = 0.05 if found.allocation.is_sure or length < 2048 else 0.2  # the script has no attention mask
    assert found.allocation.live_bytes == pytest.approx(used.num_bytes, rel=limit)


@pytest.mark.parametrize(
    ("log", "names"),
    [
        ("loss", ["logits"]),
        ("backward", []),
        ("optimizer_states", ["optimizer states"]),
        ("evaluation", ["evaluation", ]),
        ("memory_fraction", ["memory fraction"]),
        ("two_ranks", []),
    ],
)  # fmt: skip
def test_what_the_message_itself_shows(log: str, names: list[str]) -> None:
    found = vramplan.explain(LOGS / f"{log}.txt")
    assert [cause.name for cause in found.causes] == names
    assert all(cause.changes for cause in found.causes)


MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 23.52 GiB of"
    " which {free} is free. {others}Including non-PyTorch memory, this process has {own} memory in use. Of the"
    " allocated memory {used} is allocated by PyTorch, and {cached} is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ({"others": "Process 41 has 9.50 GiB memory in use. ", "own": "13.90 GiB"}, ["other processes"]),
        ({"cached": "4.00 GiB", "used": "18.80 GiB", "own": "23.30 GiB"}, ["fragmentation"]),
        ({"cached": "200.00 MiB"}, []),
    ],
)
def test_other_processes_and_fragmentation(sizes: dict[str, str], names: list[str]) -> None:
    usual = {"asked": "2.00 GiB", "free": "100.00 MiB", "others": "", "own": "23.40 GiB", "used": "22.70 GiB"}
    (failure,) = read_text(MESSAGE.format(**{"cached": "150.00 MiB", **usual, **sizes}))
    assert [cause.name for cause in causes(failure)] == names


def test_segments_are_those_of_the_allocator() -> None:
    for size in (512, MiB, MiB + 512, 5 * MiB, 10 * MiB - 512, 10 * MiB, 11 * MiB + 512, GiB):
        assert replay([0], None, [size]).peak_reserved_bytes == segment_bytes(size)


def test_a_log_without_a_message_and_a_gpu_that_is_not_known(tmp_path: Path, model: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("{'loss': 1.2}\n")
    with pytest.raises(ConfigError, match="no message of running out of memory is in it"):
        vramplan.explain(log)
    log.write_text("RuntimeError: CUDA error: out of memory\n")
    with pytest.raises(ConfigError, match="name the GPU"):
        vramplan.explain(log, configuration(model, tmp_path, 1))
    done = cli("oom", str(tmp_path / "missing.log"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_the_command_prints_the_tensor_and_lines_that_fit(model: Path, tmp_path: Path) -> None:
    config = configuration(model, tmp_path, 13)
    line = ["oom", str(LOGS / "loss.txt"), "--config", str(config), "--seq-len", "2048"]
    done = cli(*line, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    for text in ("GPU 0 out of memory, in loss, step 1 of 4", "26624 x 32000 fp32", "per_device_train_batch_size: "):
        assert text in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    data: Any = cli_json(*line)
    assert data["allocation"]["bytes"] == 26624 * 32000 * 4
    assert data["check"]["fits"] is False
