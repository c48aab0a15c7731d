"""Host memory of a node, against the libraries' own figures and a real load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import card_of, cli, spec_of
from vramplan.inputs.job import Job
from vramplan.memory.host import OtherModel, host_memory, offloaded, pinned_bytes
from vramplan.planner.job_defaults import complete_job

COUNT = 7_615_616_512


def job_of(**settings: Any) -> Job:
    return complete_job(spec_of("Qwen/Qwen2.5-7B"), card_of("a100-80gb"), {"method": "full", **settings})


def unrounded(job: Job, count: int = COUNT, trainable: int = COUNT) -> float:
    """Bytes for each parameter that the elements of a node's tensors have, whatever is allocated for them."""
    sizes = {"weights in fp32": 4, "gradients in fp32": 4, "Adam's states": 8}
    found = 0
    for one in offloaded(job, count, trainable, job.num_gpus):
        found += one.copies * one.count * sizes.get(one.what, 2)
    return found / count


@pytest.mark.parametrize(
    ("settings", "each"),
    [
        ({"strategy": "zero3", "offload": "all"}, 20),  # 18 and the weights themselves: not counted by DeepSpeed
        ({"strategy": "zero3", "offload": "optimizer"}, 18),
        ({"strategy": "zero2", "offload": "optimizer"}, 18),
        ({"strategy": "zero2", "offload": "optimizer", "gradient_accumulation_steps": 4}, 20),
    ],
)
def test_zero_offload_for_each_parameter(settings: dict[str, Any], each: float) -> None:
    """DeepSpeed's own estimate is 16 to 18 bytes, times 1.5 for buffers (estimate_zero3_model_states_mem_needs)."""
    assert unrounded(job_of(num_gpus=8, **settings)) == pytest.approx(each, rel=1e-3)


def test_pinned_memory_is_a_power_of_two() -> None:
    assert [pinned_bytes(size) for size in (0, 1, 4096, 4097, 6 << 30)] == [0, 1, 4096, 8192, 8 << 30]
    job = job_of(num_gpus=4, strategy="zero2", offload="optimizer")
    pinned = [one for one in offloaded(job, COUNT, COUNT, 4) if one.is_pinned]
    assert [one.num_bytes for one in pinned] == [4 * size << 30 for size in (8, 8, 4)]


def test_all_gpus_of_a_node_offload() -> None:
    two, four = (
        host_memory(job_of(num_gpus=gpus, strategy="fsdp", offload="all"), COUNT, COUNT, "bf16") for gpus in (2, 4)
    )
    assert two.phase_bytes()["train"] == pytest.approx(four.phase_bytes()["train"], rel=1e-6)
    assert two.phase_bytes()["train"] == pytest.approx(16 * COUNT, rel=1e-6)
    many = host_memory(job_of(num_gpus=16, num_nodes=2, strategy="fsdp", offload="all"), COUNT, COUNT, "bf16")
    assert many.gpus_per_node == 8
    assert many.phase_bytes()["train"] == pytest.approx(8 * COUNT, rel=1e-6)


def test_every_process_copies_weights_whose_dtype_changes() -> None:
    ddp = job_of(num_gpus=4, dtype="fp32")
    assert host_memory(ddp, COUNT, COUNT, "bf16").phase_bytes()["load"] == 4 * 4 * COUNT
    assert host_memory(ddp, COUNT, COUNT, "fp32").phase_bytes()["load"] == 0
    assert host_memory(ddp, COUNT, COUNT, None).phase_bytes()["load"] == 4 * 4 * COUNT
    quantized = job_of(method="lora", quantize="nf4")
    assert host_memory(quantized, COUNT, 1000, "bf16").phase_bytes()["load"] == 0


def test_models_beside_the_one_that_trains_are_loaded_too() -> None:
    job = job_of(method="lora", num_gpus=2)
    cast, unknown = OtherModel("teacher", 1000, "fp32", "bf16"), OtherModel("reward model", None, None, "bf16")
    alone, more = (host_memory(job, COUNT, COUNT, "bf16", others) for others in ((), (cast, unknown)))
    assert more.phase_bytes()["load"] - alone.phase_bytes()["load"] == 2 * 2 * 1000  # files are the system's cache
    added = [one for one in more.tensors if one not in alone.tensors]
    assert [(one.what, one.num_bytes) for one in added] == [
        ("teacher: fp32 files, cached by the system", 4000),
        ("teacher in bf16", 4000),
    ]
    assert "the files of the reward model are not counted" in more.notes


def test_saving_and_merging() -> None:
    lora = host_memory(job_of(method="lora"), COUNT, 20_000_000, "bf16").phase_bytes()
    assert (lora["save"], lora["merge"]) == (4 * 20_000_000, 2 * COUNT)
    zero3 = host_memory(job_of(num_gpus=8, strategy="zero3", method="lora"), COUNT, 20_000_000, "bf16")
    assert zero3.phase_bytes()["save"] == 2 * COUNT
    one, two = (job_of(num_gpus=8, strategy="fsdp", fsdp={"version": version}) for version in (1, 2))
    assert host_memory(one, COUNT, COUNT, "bf16").phase_bytes()["save"] == 12 * COUNT
    assert host_memory(two, COUNT, COUNT, "bf16").phase_bytes()["save"] == 0
    large = host_memory(job_of(), 10 * COUNT, 10 * COUNT, "bf16").phase_bytes()
    assert large["save"] == 50 * 10**9


LOAD = """
import torch, transformers
def anonymous():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous"))
transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=1, hidden_size=64, vocab_size=64))
for dtype in (torch.bfloat16, torch.float32):
    before = anonymous()
    model = transformers.AutoModelForCausalLM.from_pretrained({path!r}, dtype=dtype)
    print(anonymous() - before)
    del model
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells how memory is used")
def test_a_real_load_maps_files_and_copies_what_it_casts(tmp_path: Path) -> None:
    import subprocess
    import sys

    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=16, vocab_size=4096
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    count = sum(parameter.numel() for parameter in model.parameters())
    del model
    code = LOAD.format(path=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    mapped, cast = map(int, done.stdout.split()[-2:])
    assert mapped < 0.5 * 2 * count
    assert 0.9 * 4 * count < cast < 6 * count


def test_the_command_line() -> None:
    offloads = ("--num-gpus", "4", "--strategy", "zero2", "--method", "full", "--offload", "optimizer")
    line = "Host memory of a node with 4 GPUs"
    assert line in cli("estimate", "qwen2.5-7b", "--gpu", "a100-80gb", *offloads).stdout
    plain = cli("estimate", "qwen2.5-7b", "--gpu", "rtx4090")
    assert "Host memory" not in plain.stdout
    told = cli("estimate", "qwen2.5-7b", "--gpu", "rtx4090", "-v").stdout
    assert "Host memory of a node with 1 GPU" in told
    assert "is not known" in " ".join(told.split())
    found = json.loads(cli("estimate", "qwen2.5-7b", "--gpu", "rtx4090", "--json").stdout)["host"]
    assert found["phases"]["merge"] == 2 * COUNT
    assert all(one["source"] for one in found["tensors"])
    assert line not in cli("estimate", "qwen2.5-7b", "--gpu", "a100-80gb", *offloads[:-2]).stdout


VERL: dict[str, Any] = {
    "task": "grpo", "loss": "log_probs", "loop": "plain", "dtype": "fp32", "autocast": "bf16", "num_gpus": 8,
    "strategy": "fsdp", "fsdp": {"version": 1}, "attention": "flash", "batches": "unpadded", "sequence_length": 1024,
    "prompt_length": 512, "generate_with": "vllm_sleep", "optimizer": "adamw_torch",
}  # fmt: skip
CRITIC = {"sequence_length": 1024, "scored_tokens": 1024, "param_offload": True, "optimizer_offload": True}


@pytest.mark.parametrize(
    ("verl", "each"),
    [
        ({}, 0),
        ({"param_offload": True}, 4),
        ({"param_offload": True, "optimizer_offload": True}, 12),
        ({"critic": CRITIC}, 12),
    ],
)
def test_verl_keeps_what_does_not_run_on_the_host(verl: dict[str, Any], each: int) -> None:
    """Bytes a parameter of a node with all shards: fp32 weights, and twice as much of states."""
    host = host_memory(job_of(**VERL, verl=verl), COUNT, COUNT, "bf16")
    assert host.phase_bytes()["train"] == pytest.approx(each * COUNT, rel=1e-6)
    assert host.phase_bytes()["save"] == pytest.approx((each + 12) * COUNT, rel=1e-6)
