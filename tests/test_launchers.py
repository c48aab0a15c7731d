"""Launchers in front of a training program: how many processes they start, and on which GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramplan.errors import ConfigError
from vramplan.frameworks.detect import from_path, from_words
from vramplan.planner.check import read

SCRIPT = "run_clm.py --model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 1 --bf16 true"
SWIFT = "swift/cli/sft.py --model Qwen/Qwen2.5-0.5B"


def num_gpus(command: str, machine: int = 8) -> int:
    return int(read(from_words(command.split(), None, {}), machine).job["num_gpus"])


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("torchrun", 1),
        ("torchrun --nproc-per-node=gpu", 8),
        ("torchrun --nproc_per_node 4 --nnodes 2 --node_rank 0 --master_addr 10.0.0.1", 8),
        ("torchrun --standalone --nproc_per_node=2", 2),
        ("python -m torch.distributed.run --nproc_per_node 3", 3),
        ("python3 -u -W ignore -m torch.distributed.launch --use_env --nproc_per_node=2", 2),
        ("python -m accelerate.commands.launch --num_processes 2", 2),
        ("accelerate launch", 8),
        ("accelerate launch --multi_gpu --gpu_ids 0,1", 2),
        ("accelerate launch --quiet --gpu_ids=0 --num_processes 1", 1),
        ("accelerate launch --num_machines 2 --num_processes 16", 16),
        ("deepspeed", 8),
        ("deepspeed --num_gpus 4", 4),
        ("deepspeed --num_gpus=2 --num_nodes=2 --master_port 29500", 4),
        ("deepspeed --include localhost:0,1,2,3", 4),
        ("deepspeed --include=localhost:5", 1),
        ("deepspeed -i worker-1@worker-2:0,2", None),
        ("deepspeed --include worker-1:0,1,2@worker-2:0,2", 5),
        ("deepspeed --include localhost:all", 8),
        ("deepspeed --no_local_rank --include localhost", 8),
        ("srun --gres=gpu:4 torchrun --nproc_per_node 4", 4),
        ("srun --gres=gpu:a100:4 accelerate launch", 4),
        ("srun -N 2 --ntasks-per-node=4 --gpus-per-node=4 python -u", 8),
        ("srun -n16 --nodes=2 python", 16),
        ("mpirun -np 4 --hostfile hosts python", 4),
        ("mpirun --allow-run-as-root -n 2 torchrun --nproc_per_node 8", 8),
        ("accelerate-launch --num_processes=3", 3),
        ("nohup accelerate launch --num_processes 3", 3),
        ("uv run --with x torchrun --nproc_per_node 2", 2),
    ],
)
def test_processes(launcher: str, expected: int | None) -> None:
    if expected is None:
        with pytest.raises(ConfigError, match="expected such as localhost:0,1,2,3"):
            num_gpus(f"{launcher} {SCRIPT}")
    else:
        assert num_gpus(f"{launcher} {SCRIPT}") == expected


@pytest.mark.parametrize(
    ("launcher", "nodes"),
    [
        ("torchrun --nproc_per_node 4 --nnodes 2 --node_rank 0 --master_addr 10.0.0.1", 2),
        ("torchrun --standalone --nproc_per_node=2", 1),
        ("accelerate launch --num_machines 2 --num_processes 16", 2),
        ("deepspeed --num_gpus=2 --num_nodes=2 --master_port 29500", 2),
        ("srun -n16 --nodes=2 python", 2),
    ],
)
def test_nodes(launcher: str, nodes: int) -> None:
    job = read(from_words(f"{launcher} {SCRIPT}".split(), None, {}), 8).job
    assert job.get("num_nodes", 1) == nodes


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("accelerate launch --num_processes 2", 2),
        ("torchrun --nproc_per_node 4", 4),
        ("deepspeed --include localhost:0,1", 2),
    ],
)
def test_swift_by_its_path(launcher: str, expected: int) -> None:
    assert num_gpus(f"{launcher} {SWIFT}", machine=expected) == expected


def test_exclude_depends_on_the_machine() -> None:
    with pytest.raises(ConfigError, match=r"--exclude localhost:0: .*write --include or --num_gpus"):
        num_gpus(f"deepspeed --exclude localhost:0 {SCRIPT}")


def script(tmp_path: Path, text: str) -> int:
    path = tmp_path / "job.sh"
    path.write_text(text)
    return int(read(from_path(path, None, {}), 1).job["num_gpus"])


def test_hostfile(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# two nodes\nworker-1 slots=8\nworker-2 slots=4\n")
    assert script(tmp_path, f"deepspeed --hostfile hosts {SCRIPT}") == 12
    assert script(tmp_path, f"deepspeed --hostfile=hosts --num_nodes 1 {SCRIPT}") == 8
    with pytest.raises(ConfigError, match="--hostfile other: no such file"):
        script(tmp_path, f"deepspeed --hostfile other {SCRIPT}")
    assert script(tmp_path, f"deepspeed --hostfile other --num_nodes 2 --num_gpus 8 {SCRIPT}") == 16


def test_a_hostfile_tells_the_nodes(tmp_path: Path) -> None:
    """With as many GPUs on each, as beside --num_gpus: their network is between them."""
    (tmp_path / "hosts").write_text("worker-1 slots=8\nworker-2 slots=8\n")
    path = tmp_path / "train.sh"
    for flags, nodes in (("", 2), ("--num_gpus 8", 2), ("--num_nodes 1", 1)):
        path.write_text(f"deepspeed --hostfile hosts {flags} {SCRIPT}\n")
        job = read(from_path(path, None, {}), 1).job
        assert (job["num_gpus"], job.get("num_nodes", 1)) == (8 * nodes, nodes), flags


@pytest.mark.parametrize(
    ("directives", "command", "expected"),
    [
        ("--gres=gpu:8", "deepspeed", 8),
        ("--gpus-per-node=h100:4\n#SBATCH -N 2  # two", "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 4", 8),
        ("--nodes=2 --gpus=16", "torchrun --nnodes=$SLURM_NNODES --nproc_per_node=$SLURM_GPUS_ON_NODE", 16),
        ("--nodes=2\n#SBATCH --ntasks-per-node=8\n#SBATCH --gres=gpu:8", "srun python", 16),
        ("--gres=gpu:1", "python", 1),
        ("--gres=gpu:8,nvme:1", "CUDA_VISIBLE_DEVICES=0,1 accelerate launch", 2),
        ("--time=2:00:00 --mem 64G", "torchrun --nproc_per_node 2", 2),
    ],
)  # fmt: skip
def test_sbatch(tmp_path: Path, directives: str, command: str, expected: int) -> None:
    assert script(tmp_path, f"#!/bin/bash\n#SBATCH {directives}\n{command} {SCRIPT}\n") == expected
