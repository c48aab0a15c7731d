"""Communication in a step: what each strategy sends, the time of a transfer, what computation hides."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import vramplan
from vramplan.analytic.estimator import begin
from vramplan.analytic.job_steps import JobSteps
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.links import with_links
from vramplan.planner.job_defaults import complete_job
from vramplan.step_time.communication import (
    Communication,
    Sent,
    Transfer,
    communication_seconds,
    host_optimizer_seconds,
)
from vramplan.step_time.link_rates import (
    CALL_SECONDS,
    HOST_BYTES_PER_SECOND,
    HOST_BYTES_PER_WEIGHT,
    HOST_COPY_SHARE,
    NETWORK_SHARE,
    NVLINK_SHARE,
    PCIE_KERNEL_SHARE,
    PCIE_SHARE,
    PEER_TO_PEER_SHARE,
    Group,
    collective_seconds,
    describe_links,
    group_of,
    host_copy_seconds,
    rate_in_node,
)

SMALL = "HuggingFaceTB/SmolLM2-135M"
GB = 10**9
STRATEGIES: list[dict[str, Any]] = [
    {"strategy": "ddp"},
    {"strategy": "ddp", "loop": "plain"},
    {"strategy": "zero0", "autocast": "none"},
    {"strategy": "zero1", "autocast": "none"},
    {"strategy": "zero2", "autocast": "none"},
    {"strategy": "zero2", "autocast": "none", "offload": "optimizer"},
    {"strategy": "zero3", "autocast": "none"},
    {"strategy": "zero3", "autocast": "none", "offload": "all"},
    {"strategy": "fsdp", "fsdp": {"version": 1}},
    {"strategy": "fsdp", "fsdp": {"version": 1, "replicas": 2}},
    {"strategy": "fsdp", "fsdp": {"version": 2}},
    {"strategy": "fsdp", "fsdp": {"version": 2}, "offload": "all"},
    {"strategy": "fsdp", "fsdp": {"version": 2, "reshard_after_forward": False}},
]


def sent_by(gpu: Gpu, **settings: Any) -> tuple[Job, Communication]:
    """A complete job of a small model, and what one GPU sends."""
    spec = vramplan.load_model(SMALL)
    job = complete_job(spec, gpu, {"method": "full", "sequence_length": 128, "num_gpus": 4, **settings})
    steps = JobSteps(spec, job, gpu)
    steps.begin(job.micro_batch_size, job.gradient_accumulation_steps, several=False)
    [shape] = steps._common.shapes.values()
    return job, shape.run.layout(0).communication


def total_bytes(communication: Communication, kind: str, phase: str, is_last: bool = True) -> int:
    return sum(
        one.num_bytes for one in communication.transfers if (one.kind, one.phase, one.is_last) == (kind, phase, is_last)
    )


# -- one transfer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "link", "gpus", "rate"),
    [
        ("a100-80gb", None, 8, 300 * GB * NVLINK_SHARE),
        ("a100-80gb", "pcie", 8, 31.5 * GB * PCIE_SHARE),
        ("rtx4090", None, 2, 31.5 * GB * PCIE_SHARE),
        ("rtx4090", "pcie-p2p", 2, 31.5 * GB * PEER_TO_PEER_SHARE),
        ("rtx3090", "nvlink", 2, 56.25 * GB * NVLINK_SHARE),
        ("rtx3090", "nvlink", 4, 31.5 * GB * PCIE_SHARE),  # a bridge connects two
        ("rtxa6000", "nvlink", 4, 31.5 * GB * PEER_TO_PEER_SHARE),
    ],
)
def test_the_rate_in_a_node(name: str, link: str | None, gpus: int, rate: float) -> None:
    assert rate_in_node(with_links(find_gpu(name), link), gpus) == pytest.approx(rate)


def test_links_in_words() -> None:
    gpu = with_links(find_gpu("a100-80gb"), network_gbits=400)
    assert describe_links(Job(num_gpus=8), gpu) == "time: NVLink 3 reaches 78% of 300 GB/s"
    both = describe_links(Job(num_gpus=16, num_nodes=2), gpu)
    assert both == "time: NVLink 3 reaches 78% of 300 GB/s, each node's network 90% of 400 Gbit/s"
    host = describe_links(Job(num_gpus=2), find_gpu("rtx4090"))
    assert host == "time: PCIe through the host's memory reaches 33% of 31.5 GB/s"
    assert describe_links(Job(), gpu) == describe_links(Job(num_gpus=2, strategy="device_map"), gpu) == ""
    found = vramplan.estimate(SMALL, "rtx4090", num_gpus=2)
    assert host in found.assumptions


def test_a_ring_moves_what_the_others_have() -> None:
    gpu = find_gpu("a100-80gb")
    gather = collective_seconds("all_gather", 8 * GB, 3, Group(8), gpu)
    assert gather == pytest.approx(7 * GB / (300 * GB * NVLINK_SHARE) + 3 * CALL_SECONDS)
    reduce = collective_seconds("all_reduce", 8 * GB, 1, Group(8), gpu)
    assert reduce == pytest.approx(2 * 7 * GB / (300 * GB * NVLINK_SHARE) + CALL_SECONDS)
    assert collective_seconds("all_reduce", 8 * GB, 1, Group(1), gpu) == 0.0


def test_the_network_is_shared_by_the_gpus_of_a_node() -> None:
    gpu = with_links(find_gpu("a100-80gb"), network_gbits=100)
    between = collective_seconds("all_gather", 8 * GB, 1, Group(16, 2), gpu)
    assert between == pytest.approx(4 * GB / (12.5 * GB * NETWORK_SHARE) + CALL_SECONDS)
    each = collective_seconds("all_gather", GB, 1, Group(2, 2, sharing=8), gpu)
    assert each == pytest.approx(between)
    assert collective_seconds("all_gather", GB, 1, Group(16, 2), find_gpu("a100-80gb")) is None


def test_groups_of_hybrid_sharding() -> None:
    """8 GPUs of each of 2 nodes share the weights; each holds the same shard as one of the other node."""
    job = Job(num_gpus=16, num_nodes=2, strategy="fsdp", fsdp={"version": 1, "replicas": 2})
    assert group_of(job) == Group(8, 1, 1)
    assert group_of(job, between_replicas=True) == Group(2, 2, 8)
    assert group_of(Job(num_gpus=16, num_nodes=2)) == Group(16, 2, 1)
    halves = Job(num_gpus=8, strategy="fsdp", fsdp={"version": 1, "replicas": 2})
    assert group_of(halves) == Group(4, 1, 2)
    assert group_of(halves, between_replicas=True) == Group(2, 1, 4)


def test_copies_to_the_host() -> None:
    assert host_copy_seconds(10 * GB, find_gpu("rtx4090")) == pytest.approx(10 / (31.5 * HOST_COPY_SHARE))
    assert host_copy_seconds(10 * GB, find_gpu("gb200")) is None


# -- what is hidden ----------------------------------------------------------------------------------------------------


def transfer(hidden: bool, edge_bytes: int = 0, phase: Any = "backward", is_last: bool = True) -> Transfer:
    return Transfer("all_gather", phase, is_last, hidden, False, 2 * GB, 1, edge_bytes)


def test_computation_hides_what_runs_beside_it() -> None:
    gpu, job = find_gpu("rtx4090"), Job(num_gpus=2)
    rate = 31.5 * GB * PCIE_SHARE
    whole, edge = GB / rate + CALL_SECONDS, 0.1 * GB / rate + CALL_SECONDS

    def added(one: Transfer, backward_seconds: float) -> float | None:
        return communication_seconds(Communication((one,)), job, gpu, 0.0, backward_seconds)

    assert added(transfer(False), 10.0) == pytest.approx(whole)
    assert added(transfer(True), 10.0) == pytest.approx(whole * PCIE_KERNEL_SHARE)
    assert added(transfer(True), 0.02) == pytest.approx(whole - 0.02 + 0.02 * PCIE_KERNEL_SHARE)
    assert added(transfer(True, GB // 5), 10.0) == pytest.approx(edge + (whole - edge) * PCIE_KERNEL_SHARE)
    assert added(transfer(True, phase="forward"), 10.0) == pytest.approx(whole)  # the forward has no time here
    assert added(transfer(True, phase="optimizer"), 10.0) == pytest.approx(whole)


def test_every_micro_step_but_the_last() -> None:
    gpu, job = find_gpu("rtx4090"), Job(num_gpus=2, gradient_accumulation_steps=5)
    early = communication_seconds(Communication((transfer(False, is_last=False),)), job, gpu, 1.0, 1.0)
    last = communication_seconds(Communication((transfer(False),)), job, gpu, 1.0, 1.0)
    assert early is not None
    assert last is not None
    assert early == pytest.approx(4 * last)


def test_edges() -> None:
    sent = Sent()
    for num_bytes in (3, 2, 1, 0):
        sent.add("all_gather", "forward", num_bytes)
        sent.add("all_reduce", "backward", num_bytes)
        sent.add("all_gather", "backward", num_bytes)
    edges = {
        (one.kind, one.phase): (one.num_bytes, one.calls, one.edge_bytes) for one in sent.communication().transfers
    }
    assert edges == {
        ("all_gather", "forward"): (6, 3, 3),
        ("all_reduce", "backward"): (6, 3, 1),
        ("all_gather", "backward"): (6, 3, 0),
    }


# -- what strategies send ----------------------------------------------------------------------------------------------


def test_ddp_reduces_gradients_after_the_last_micro_batch() -> None:
    job, sent = sent_by(find_gpu("rtx4090"), gradient_accumulation_steps=4)
    gradients = vramplan.estimate(SMALL, "rtx4090", method="full").num_trainable_parameters * 2
    [reduce] = sent.transfers
    assert (reduce.kind, reduce.phase, reduce.is_last, reduce.is_hidden) == ("all_reduce", "backward", True, True)
    assert reduce.num_bytes == gradients
    assert reduce.edge_bytes >= 49152 * 576 * 2  # the embedding's gradient comes last
    assert job.loop == "trainer"
    _, plain = sent_by(find_gpu("rtx4090"), gradient_accumulation_steps=4, loop="plain")
    assert total_bytes(plain, "all_reduce", "backward", is_last=False) == gradients


def test_zero_1_reduces_once_and_zero_2_in_every_micro_step() -> None:
    gpu = find_gpu("rtx4090")
    _, first = sent_by(gpu, strategy="zero1", autocast="none", gradient_accumulation_steps=4)
    _, second = sent_by(gpu, strategy="zero2", autocast="none", gradient_accumulation_steps=4)
    gradients = total_bytes(first, "all_reduce", "backward")
    assert gradients == total_bytes(second, "all_reduce", "backward") > 0
    assert total_bytes(first, "all_reduce", "backward", is_last=False) == 0
    assert total_bytes(second, "all_reduce", "backward", is_last=False) == gradients
    for sent in (first, second):
        assert gradients <= total_bytes(sent, "all_gather", "optimizer") <= gradients + 64
        assert not any(one.is_hidden for one in sent.transfers)
    for strategy in ("zero1", "zero2"):
        _, beside = sent_by(gpu, strategy=strategy, autocast="none", zero={"overlap_comm": True})
        assert total_bytes(beside, "all_reduce", "backward") == gradients
        assert all(one.is_hidden for one in beside.transfers if one.kind == "all_reduce")


def test_fsdp_gathers_in_forward_and_backward_and_reduces_at_the_end() -> None:
    gpu = find_gpu("rtx4090")
    weights = vramplan.estimate(SMALL, "rtx4090", method="full").num_parameters * 2
    for version in (1, 2):
        _, sent = sent_by(gpu, strategy="fsdp", fsdp={"version": version}, gradient_accumulation_steps=4)
        for is_last in (False, True):
            forward = total_bytes(sent, "all_gather", "forward", is_last)
            backward = total_bytes(sent, "all_gather", "backward", is_last)
            assert weights <= forward <= weights * 1.01
            assert weights * 0.7 < backward <= forward  # the embedding, tied to the head, stays
        assert total_bytes(sent, "reduce_scatter", "backward", is_last=False) == 0
        assert weights <= total_bytes(sent, "reduce_scatter", "backward") <= weights * 1.01
    _, kept = sent_by(gpu, strategy="fsdp", fsdp={"version": 2, "reshard_after_forward": False})
    assert total_bytes(kept, "all_gather", "backward") == 0


def test_four_bit_weights_are_gathered_packed() -> None:
    gpu = find_gpu("rtx4090")
    settings: dict[str, Any] = {"strategy": "fsdp", "method": "lora"}
    _, packed = sent_by(gpu, **settings, quantize="nf4")
    _, whole = sent_by(gpu, **settings)
    embedding = 49152 * 576 * 2
    layers = [total_bytes(sent, "all_gather", "forward") - embedding for sent in (packed, whole)]
    assert 0.25 < layers[0] / layers[1] < 0.35  # adapters are not packed


def test_offloading_copies_by_way_of_pcie_and_updates_on_the_host() -> None:
    gpu = find_gpu("rtx4090")
    parameters = vramplan.estimate(SMALL, "rtx4090", method="full").num_parameters
    for settings in ({"strategy": "fsdp"}, {"strategy": "zero3", "autocast": "none"}):
        job, sent = sent_by(gpu, **settings, offload="all")
        assert parameters / 4 <= sent.updated_on_host <= parameters / 4 * 1.01
        assert total_bytes(sent, "from_host", "forward") >= parameters * 2 / 4 * 0.99
        assert total_bytes(sent, "to_host", "backward") >= parameters * 2 / 4
        seconds = 4 * sent.updated_on_host * HOST_BYTES_PER_WEIGHT / HOST_BYTES_PER_SECOND
        assert host_optimizer_seconds(sent, job) == pytest.approx(seconds)
    job, sent = sent_by(gpu, strategy="zero2", autocast="none", offload="optimizer")
    estimate = begin(vramplan.load_model(SMALL), job, gpu).complete()
    assert estimate.step_time is not None
    assert estimate.step_time.optimizer_seconds == pytest.approx(host_optimizer_seconds(sent, job))


# -- whole steps -------------------------------------------------------------------------------------------------------


def added_seconds(gpu: Gpu, **settings: Any) -> float:
    found = vramplan.estimate(SMALL, gpu, **{"method": "full", "sequence_length": 128, "num_gpus": 4, **settings})
    assert found.step_time is not None
    return found.step_time.communication_seconds


@pytest.mark.parametrize("settings", STRATEGIES, ids=str)
def test_more_accumulation_never_costs_more_per_sample(settings: dict[str, Any]) -> None:
    gpu = find_gpu("rtx4090")
    seconds = [added_seconds(gpu, **settings, gradient_accumulation_steps=steps) / steps for steps in (1, 2, 3, 8)]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(seconds))
    assert seconds[0] > 0.0


@pytest.mark.parametrize("settings", STRATEGIES, ids=str)
def test_a_faster_link_is_never_slower(settings: dict[str, Any]) -> None:
    a100 = find_gpu("a100-80gb")
    links = [added_seconds(with_links(a100, link), **settings) for link in ("pcie", "pcie-p2p", "nvlink")]
    assert links == sorted(links, reverse=True)
    assert links[0] > links[-1]
    networks = [
        added_seconds(with_links(a100, network_gbits=gbits), **settings, num_nodes=2) for gbits in (10, 100, 1600)
    ]
    assert networks == sorted(networks, reverse=True)
    assert networks[-1] >= links[-1]


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3"])
def test_one_gpu_sends_nothing(strategy: str) -> None:
    autocast = {"autocast": "none"} if strategy != "ddp" else {}
    assert added_seconds(find_gpu("rtx4090"), num_gpus=1, strategy=strategy, **autocast) == 0.0


def test_several_nodes_need_the_rate_of_their_network() -> None:
    settings: dict[str, Any] = {"num_gpus": 4, "num_nodes": 2, "method": "full"}
    unknown = vramplan.estimate(SMALL, "a100-40gb", **settings)
    assert unknown.step_time is None
    assert any("2 nodes is not known" in note and "--network" in note for note in unknown.notes)
    known = vramplan.estimate(SMALL, with_links(find_gpu("a100-40gb"), network_gbits=100), **settings)
    assert known.step_time is not None
    assert known.notes == vramplan.estimate(SMALL, "a100-40gb", num_gpus=4, method="full").notes


def test_a_gpu_without_known_links() -> None:
    found = vramplan.estimate(SMALL, "gb10", num_gpus=2, method="full")
    assert found.step_time is None
    assert any("the rate of links" in note for note in found.notes)
    assert vramplan.estimate(SMALL, "gb10", method="full").step_time is not None


def test_more_gpus_than_a_machine_holds_have_no_time() -> None:
    """Without the number of machines a job on sixteen GPUs would be timed over PCIe."""
    found = vramplan.estimate(SMALL, "h100", num_gpus=16, method="full")
    assert found.step_time is None
    assert any("a machine holds 8 such GPUs, not 16" in note and "--nodes" in note for note in found.notes)
    assert vramplan.estimate(SMALL, "gb200", num_gpus=16, method="full").step_time is not None
    two = with_links(find_gpu("h100"), network_gbits=400)
    assert vramplan.estimate(SMALL, two, num_gpus=16, num_nodes=2, method="full").step_time is not None


def test_deepspeed_overlaps_at_stage_3_unless_told_otherwise() -> None:
    """deepspeed/runtime/zero/config.py: overlap_comm is None, then whether the stage is 3."""
    settings: dict[str, Any] = {"num_gpus": 4, "method": "full", "autocast": "none"}
    for strategy, overlaps in (("zero2", False), ("zero3", True)):
        assert vramplan.estimate(SMALL, "rtx4090", strategy=strategy, **settings).job.zero.overlap_comm is overlaps
    told = vramplan.estimate(SMALL, "rtx4090", strategy="zero3", zero={"overlap_comm": False}, **settings)
    assert not told.job.zero.overlap_comm
    free = vramplan.estimate(SMALL, "rtx4090", strategy="zero3", **settings)
    assert told.step_seconds > free.step_seconds
    assert told.device_total_bytes < free.device_total_bytes  # whose gathers have memory of a stream of their own


def test_the_gpus_of_a_device_map_run_one_after_another() -> None:
    settings: dict[str, Any] = {"method": "full", "sequence_length": 128, "device_map": True}
    alone = vramplan.estimate(SMALL, "rtx4090", **settings).step_time
    spread = vramplan.estimate(SMALL, "rtx4090", **settings, strategy="device_map", num_gpus=2).step_time
    assert alone is not None
    assert spread is not None
    assert spread.communication_seconds == 0.0
    assert spread.micro_step_seconds == pytest.approx(alone.micro_step_seconds, rel=0.05)
