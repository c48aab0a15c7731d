"""`suggest --for` a job on several nodes: its launcher starts all of them, and reading it again gives the same job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import cli, spec_of
from vramplan.frameworks.detect import from_path
from vramplan.frameworks.readers.zero_config import stage_defaults
from vramplan.frameworks.registry import writers
from vramplan.frameworks.write import write
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.job import Job
from vramplan.planner import check, export
from vramplan.planner.job_defaults import complete_job

QWEN = "Qwen/Qwen2.5-7B"
TWO = {
    "num_gpus": 16,
    "num_nodes": 2,
    "method": "full",
    "attention": "flash",
}  # of which axolotl keeps embeddings in half precision
ON_EACH = (
    "run the command on each of the 2 nodes: set NODE_RANK there to the node's number, from 0 to 1, and MASTER_ADDR to"
    " the address of node 0"
)
VARIABLES = "NPROC_PER_NODE=8 NNODES=2 NODE_RANK=$NODE_RANK MASTER_ADDR=$MASTER_ADDR MASTER_PORT=29500"
MACHINE = "--machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR"
TORCHRUN = "torchrun --nproc_per_node 8 --nnodes 2 --node_rank $NODE_RANK --master_addr $MASTER_ADDR"
LAUNCHERS = {
    "swift": f"{VARIABLES} swift sft",
    "llamafactory": f"{VARIABLES} FORCE_TORCHRUN=1 llamafactory-cli train train.yaml",
    "axolotl": f"accelerate launch --multi_gpu --num_processes 16 --num_machines 2 {MACHINE} -m axolotl.cli.train",
    "trl": f"trl sft --config train.yaml {MACHINE}",
    "unsloth": f"{TORCHRUN} train.py",
    "transformers": f"{TORCHRUN} run_clm.py",
    "accelerate": "accelerate launch --multi_gpu --num_processes 16 --num_machines 2 --mixed_precision bf16 " + MACHINE,
}
"""Torchrun counts the processes of a node; accelerate those of all nodes (1.15: utils/launch.py)."""
LAUNCHED = [
    (name, strategy)
    for name, (_, writer) in writers().items()
    for strategy in ("ddp", "zero3", "fsdp")
    if name in LAUNCHERS and strategy in writer.strategies
]


def job_of(**settings: Any) -> Job:
    card = find_gpu("h100")
    assert card is not None
    return complete_job(spec_of(QWEN), card, settings)


def pasted(name: str, job: Job, folder: Path) -> dict[str, Any]:
    """The job that the readers find in what was written, pasted into a script and a file beside it."""
    written = write(name, QWEN, job)
    command = str(written)
    if written.file:
        (folder / written.file).write_text(str(written))
        command = str(written).partition("\n")[0].removeprefix("# ")
    script = folder / "run.sh"
    script.write_text(command)
    return check.read(from_path(script, None, {}), job.num_gpus // job.num_nodes).job


def test_every_writer_is_tested() -> None:
    assert writers().keys() - LAUNCHERS == {
        "torchtune",  # one GPU
        "deepspeed",  # a file that says no GPUs
        "sentence-transformers",  # test_writing_tasks.py
    }


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_starts_every_node(name: str) -> None:
    job = job_of(**TWO)
    text, settings, notes, _ = export.written_as(name, QWEN, job)
    assert LAUNCHERS[name] in " ".join(text.replace("\\\n", " ").split())
    assert (settings["num_gpus"], settings["num_nodes"]) == (16, 2)
    assert notes[-1] == ON_EACH
    one = export.written_as(name, QWEN, job_of(**{**TWO, "num_nodes": 1}))
    assert not [word for word in ("NNODES", "nnodes", "num_machines", "RANK", "rank") if word in one.text]
    assert ON_EACH not in one.notes


@pytest.mark.parametrize(("name", "strategy"), LAUNCHED)
@pytest.mark.parametrize("num_gpus", [2, 16])
def test_it_is_read_as_the_same_job(name: str, strategy: str, num_gpus: int, tmp_path: Path) -> None:
    """As its note says and as it is pasted, also with a single GPU in each node."""
    job = job_of(**{**TWO, "num_gpus": num_gpus}, strategy=strategy)
    *differences, _ = export.written_as(name, QWEN, job).notes
    assert not [note for note in differences if "num_" in note or "strategy" in note]
    if name != "unsloth":  # whose file is a script to be completed
        read = pasted(name, job, tmp_path)
        assert (read["num_gpus"], read["num_nodes"]) == (num_gpus, 2)
        assert read.get("strategy", "ddp") == strategy


@pytest.mark.parametrize("name", ["swift", "axolotl", "trl", "transformers", "accelerate"])
def test_a_replica_on_each_node(name: str) -> None:
    """FSDP 1's hybrid sharding; other numbers of replicas cannot be said."""
    fsdp = {"version": 1, "replicas": 2, "backward_prefetch": "pre"}
    written = export.written_as(name, QWEN, job_of(**TWO, strategy="fsdp", fsdp=fsdp))
    assert "hybrid_shard" in written.text
    assert not [note for note in written.notes if "fsdp.replicas" in note]
    four = export.written_as(name, QWEN, job_of(**TWO, strategy="fsdp", fsdp={**fsdp, "replicas": 4}))
    assert [note for note in four.notes if note.endswith("takes fsdp.replicas as 1, not 4")]


def test_accelerate_starts_deepspeed_without_ssh() -> None:
    """Its default reaches the nodes by pdsh and a file of hosts, from node 0 alone (1.15: utils/launch.py)."""
    text = export.written_as("accelerate", QWEN, job_of(**TWO, **stage_defaults(3))).text
    assert "--use_deepspeed --num_processes 16 --num_machines 2" in text
    assert "--zero_stage 3 --deepspeed_multinode_launcher standard" in text
    assert "--multi_gpu" not in text  # it stops at both


def test_accelerate_with_one_gpu_in_each_node() -> None:
    """It starts a single process unless the configuration says several GPUs."""
    job = job_of(**{**TWO, "num_gpus": 2})
    assert "accelerate_config: multi_gpu\n" in export.written_as("trl", QWEN, job).text
    assert "accelerate_config" not in export.written_as("trl", QWEN, job_of(**TWO)).text


def test_a_file_of_deepspeed_says_no_nodes() -> None:
    (note,) = export.written_as("deepspeed", QWEN, job_of(**TWO, strategy="zero3")).notes
    assert "deepspeed --hostfile HOSTS --num_nodes 2 --num_gpus 8;" in note
    assert export.written_as("deepspeed", QWEN, job_of(num_gpus=16, method="full", strategy="zero3")).notes == []


def test_the_command() -> None:
    words = ("suggest", QWEN, "--method", "full", "--global-batch", "64", "--gpu", "h100", "--num-gpus", "16")
    done = cli(*words, "--nodes", "2", "--strategy", "zero3", "--for", "swift")
    assert done.returncode == 0, done.stderr
    assert "NPROC_PER_NODE=8 \\\nNNODES=2 \\\n" in done.stdout
    assert done.stderr == f"vramplan: {ON_EACH}\n"


def test_nothing_is_run_that_does_not_fit() -> None:
    card = find_gpu("rtx4090")
    assert card is not None
    told = export.export("swift", spec_of(QWEN), job_of(**TWO), card)
    assert not told.fits
    assert ON_EACH not in told.notes
