"""Two processes that train together: they agree, none waits for ever, and the run is that of one process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")

import torch

from tests.adaptive_runs import Network, growing, samples
from tests.helpers import ROOT
from vramplan.adaptive.step_loader import StepLoader
from vramplan.adaptive.torch_loop import AdaptiveLoop


def train_together(folder: Path, scenarios: str) -> list[dict[str, Any]]:
    """What each of two processes found."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    processes = []
    for rank in range(2):
        environment = {
            **os.environ,
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
        }
        command = [sys.executable, "-m", "tests.adaptive_ranks", str(folder / f"{rank}.json"), scenarios]
        processes.append(
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), outputs[0][-3000:] + outputs[1][-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def alone(count: int = 40) -> tuple[AdaptiveLoop, list[Any]]:
    """The run of one process, at the same global batches."""
    controller, model = growing(), Network(dropout=0)
    loader = StepLoader(samples(count), controller, epochs=2)
    loop = AdaptiveLoop(controller, model, torch.optim.AdamW(model.parameters(), lr=0.01), loader)
    return loop, list(loop.steps(model))


def weights(loop: AdaptiveLoop) -> list[float]:
    return [float(number) for weight in loop.model.parameters() for number in weight.detach().flatten()]


def check_without_a_switch_the_run_is_plain_ddp_bit_for_bit(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["plain"] == {"constant": True, "measuring": True, "unused": True}


def check_switches_are_those_of_one_process(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["switches"] for rank in ranks)
    loop, steps = alone(41)
    assert sorted(first["seen"] + second["seen"]) == sorted([*range(41)] * 2)
    assert first["batches"] == second["batches"] == [step.global_batch_size for step in steps]
    assert first["losses"] == second["losses"]
    assert first["losses"] == pytest.approx([step.loss for step in steps], rel=1e-4)
    assert first["weights"] == second["weights"]
    assert first["weights"] == pytest.approx(weights(loop), rel=1e-3, abs=1e-4)
    assert first["decisions"] == second["decisions"]
    assert (first["lines"], second["lines"]) == (2, 0)  # rank 0 writes


def check_norms_are_those_of_the_ranks_gradients(ranks: list[dict[str, Any]]) -> None:
    model = Network(dropout=0)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0)).tolist()

    def squared(rows: list[int]) -> float:
        picked = [samples(8)[row] for row in rows]
        loss = model({name: torch.stack([one[name] for one in picked]) for name in picked[0]})
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        return sum(float(gradient.square().sum()) for gradient in gradients)

    for micro in (4, 2):
        assert ranks[0]["norms"][str(micro)] == ranks[1]["norms"][str(micro)]
        small, small_batch, large, large_batch, _ = ranks[0]["norms"][str(micro)][0]
        parts = [order[at : at + micro] for at in range(0, 8, micro)]
        assert small == pytest.approx(sum(map(squared, parts)) / len(parts), rel=1e-4)
        assert large == pytest.approx(squared(order), rel=1e-4)
        assert (small_batch, large_batch) == pytest.approx((micro, 8))


def check_one_rank_out_of_memory(ranks: list[dict[str, Any]]) -> None:
    smooth = ranks[0]["out_of_memory"]["smooth"]
    for name, failed in {"forward": ([], [4]), "backward": ([4], []), "both": ([4], [4])}.items():
        found = [rank["out_of_memory"][name] for rank in ranks]
        assert tuple(one["failed"] for one in found) == failed
        assert found[0]["weights"] == found[1]["weights"]
        assert found[0]["weights"] == pytest.approx(smooth["weights"], rel=1e-3, abs=1e-4)
        assert found[0]["losses"] == pytest.approx(smooth["losses"], rel=1e-3)
        assert [one["micro"] for one in found] == [2, 2]  # both, though one alone had failed


def check_without_a_smaller_micro_batch_both_end_in_the_same_line(ranks: list[dict[str, Any]]) -> None:
    messages = [rank["none_smaller"]["message"] for rank in ranks]
    assert messages[0] == messages[1]
    assert "out of memory at micro-batch 1" in messages[0]


def check_restored_in_the_middle(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["restart"] == {"same": True, "states": True} for rank in ranks)


def check_accelerate(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["accelerated"] == {"same": True, "kind": "DistributedDataParallel"} for rank in ranks)


def check_what_is_refused(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        plain, hooked = rank["refused"]["messages"]
        assert plain == "ConfigError: 2 processes, and a Network: expected DistributedDataParallel"
        assert hooked.startswith("UnsupportedError: DistributedDataParallel's communication hooks")


def test_two_processes(tmp_path: Path) -> None:
    """One test, because the processes are started once for all checks."""
    ranks = train_together(tmp_path, "loop")
    checks = [check for name, check in globals().items() if name.startswith("check_")]
    assert len(checks) == 8
    for check in checks:
        check(ranks)


@pytest.mark.full
def test_trainers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    first, second = (rank["trainers"] for rank in train_together(tmp_path, "trainer"))
    for rank in (first, second):
        assert (rank["constant"], rank["measuring"]) == (True, True)
    assert sorted(first["seen"] + second["seen"]) == list(range(41))
    assert first["tokens"] == second["tokens"] == 41 * 8
    assert (first["failed"], "failed" in second) == ([4], False)
    assert first["limited"] == second["limited"]
    assert first["limited"] == pytest.approx(first["smooth"], rel=1e-2, abs=1e-3)
