"""The time of a step on one GPU: its kernels, the rates of GPUs, the band, and where it is not known."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vramplan
from tests.helpers import ROOT, card_of, cli, cli_json, spec_of
from vramplan.analytic.estimator import begin
from vramplan.analytic.job_steps import JobSteps, phases
from vramplan.inputs.catalog import all_gpus
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.links import with_links
from vramplan.measurements.timed_run import TimedRun, load_times
from vramplan.memory.optimizers import optimizer_seconds
from vramplan.planner.job_defaults import complete_job
from vramplan.step_time import rates
from vramplan.step_time.kernels import (
    ATTENTION,
    BACKWARD,
    CAUSAL_ATTENTION,
    DEQUANTIZE,
    ELEMENTWISE,
    MATMUL,
    Kernel,
    Kernels,
    kernel_seconds,
    micro_step_seconds,
)
from vramplan.step_time.rates import Rates, generation_name, generation_of, is_timed, rates_of
from vramplan.step_time.step_time import StepTime

SMALL = "HuggingFaceTB/SmolLM2-135M"
LAYERS, HEADS, WIDTH, VOCABULARY = 30, 9, 64, 49152
LINEAR = 134_515_008 - (2 * LAYERS + 1) * 576
"""Weights of its matrix products, the head included: all but those of the norms."""
TOKENS = 512
PUBLISHED = ROOT / "tests" / "published_times.jsonl"
LEARNED: dict[str, Any] = json.loads((ROOT / "vramplan" / "step_time" / "rates.json").read_text())
TIMED = [gpu for gpu in all_gpus() if is_timed(gpu)]


def kernels_of(gpu: str = "rtx4090", model: str = SMALL, **settings: Any) -> tuple[Kernels, Kernels]:
    """Kernels of a micro-step's forward and backward."""
    job = complete_job(spec_of(model), card_of(gpu), {"sequence_length": TOKENS, **settings})
    steps = JobSteps(spec_of(model), job, card_of(gpu))
    at = steps.scaling.step(job.micro_batch_size, job.gradient_accumulation_steps)
    return phases(at, steps.shape(at, job))


def runs_of(kernels: Kernels) -> dict[str, int]:
    """Number of ops by kind, elementwise ones left out."""
    counts: Counter[str] = Counter()
    for kernel, runs in kernels:
        counts[kernel.kind] += runs
    assert counts.pop(ELEMENTWISE) > 0
    return dict(counts)


def total(kernels: Kernels, kind: str, field: str = "flops") -> int:
    return sum(runs * getattr(kernel, field) for kernel, runs in kernels if kernel.kind == kind)


def with_rates(gpu: Gpu, **changes: float) -> Rates:
    return rates_of(gpu)._replace(**changes)


# -- kinds of kernels --------------------------------------------------------------------------------------------------

FULL: dict[str, Any] = {"method": "full", "checkpointing": "none"}


@pytest.mark.parametrize(
    ("settings", "forward", "backward"),
    [
        (
            {**FULL, "attention": "flash"},
            {CAUSAL_ATTENTION: LAYERS, MATMUL: 7 * LAYERS + 1},
            {CAUSAL_ATTENTION + BACKWARD: LAYERS, MATMUL: 2 * (7 * LAYERS + 1)},
        ),
        (  # a mask of the padding: the memory-efficient kernel, which computes every score
            {**FULL, "attention": "sdpa", "batches": "padded"},
            {ATTENTION: LAYERS, MATMUL: 7 * LAYERS + 1},
            {ATTENTION + BACKWARD: LAYERS, MATMUL: 2 * (7 * LAYERS + 1)},
        ),
        (  # two products of each layer's attention
            {**FULL, "attention": "eager"},
            {MATMUL: 9 * LAYERS + 1},
            {MATMUL: 2 * (9 * LAYERS + 1)},
        ),
        (  # weights are dequantized for the inputs' gradients, and all but each layer's last when it is recomputed
            {"method": "lora", "quantize": "nf4", "attention": "flash", "lora_targets": "q_proj"},
            {CAUSAL_ATTENTION: LAYERS, MATMUL: 9 * LAYERS + 1, DEQUANTIZE: 7 * LAYERS},
            {CAUSAL_ATTENTION: LAYERS, CAUSAL_ATTENTION + BACKWARD: LAYERS, DEQUANTIZE: 13 * LAYERS},
        ),
    ],
    ids=["flash", "padded", "eager", "nf4"],
)
def test_kinds_that_ops_record(settings: dict[str, Any], forward: dict[str, int], backward: dict[str, int]) -> None:
    first, second = map(runs_of, kernels_of(**settings))
    assert first == forward
    assert {kind: runs for kind, runs in second.items() if kind in backward} == backward


def test_products_have_two_operations_for_each_weight_and_token() -> None:
    """2 N T forward and 4 N T backward (arXiv 2001.08361, section 2.1).

    Checkpointing repeats the forward of each layer up to its last product, whose input is the last tensor to be saved
    (torch.utils.checkpoint: early stop).
    """
    forward, backward = kernels_of(**FULL, attention="flash")
    assert total(forward, MATMUL) == 2 * LINEAR * TOKENS
    assert total(backward, MATMUL) == 4 * LINEAR * TOKENS
    _, again = kernels_of(method="full", attention="flash")
    repeated = LINEAR - VOCABULARY * 576 - LAYERS * 576 * 1536
    assert total(again, MATMUL) == total(backward, MATMUL) + 2 * repeated * TOKENS
    several, _ = kernels_of(**FULL, attention="flash", micro_batch_size=3)
    assert total(several, MATMUL) == 3 * total(forward, MATMUL)


def test_attention_has_two_products_forward_and_five_backward() -> None:
    """Each of 2 B H S^2 D operations (arXiv 2307.08691, section 4.1), of which a causal kernel skips half."""
    forward, backward = kernels_of(**FULL, attention="flash")
    product = 2 * HEADS * TOKENS**2 * WIDTH
    assert total(forward, CAUSAL_ATTENTION) == 2 * product * LAYERS
    assert total(backward, CAUSAL_ATTENTION + BACKWARD) == 5 * product * LAYERS


def test_the_results_of_products() -> None:
    """Elements: of all layers' outputs and the logits; of a weight's gradient as many as the weight has."""
    forward, backward = kernels_of(**FULL, attention="flash")
    outputs = LAYERS * (576 + 2 * 192 + 576 + 2 * 1536 + 576) + VOCABULARY
    assert total(forward, MATMUL, "results") == TOKENS * outputs
    inputs = LAYERS * (4 * 576 + 2 * 576 + 1536) + 576
    assert total(backward, MATMUL, "results") == LINEAR + TOKENS * inputs


# -- the time of a kernel ----------------------------------------------------------------------------------------------

GPU = card_of("rtx4090")
LARGE = 10**15
"""Operations beside which nothing else counts."""


def seconds(kernel: Kernel, gpu: Gpu = GPU, **changes: float) -> float:
    return kernel_seconds(kernel, gpu, with_rates(gpu, **changes))


def product(rows: int, depth: int, columns: int, dtype: str = "bf16", launches: int = 1) -> Kernel:
    """`launches` equal products of (rows x depth) and (depth x columns)."""
    moved = 2 * (rows * depth + depth * columns + rows * columns)
    values = 2 * rows * depth * columns, moved, 1, dtype, MATMUL, rows * columns
    flops, moved, _, dtype, kind, results = values
    return Kernel(launches * flops, launches * moved, launches, dtype, kind, launches * results)


def test_a_causal_kernel_takes_half_the_time() -> None:
    for backward in ("", BACKWARD):
        whole, half = (seconds(Kernel(LARGE, 0, 0, "bf16", kind + backward)) for kind in (ATTENTION, CAUSAL_ATTENTION))
        assert half == pytest.approx(whole / 2)
    padded, causal = (kernels_of(**FULL, attention="sdpa", batches=batches)[0] for batches in ("padded", "unpadded"))
    assert total(padded, ATTENTION) == total(causal, CAUSAL_ATTENTION)


def test_attention_reaches_its_own_shares_of_the_peak() -> None:
    peak, known = GPU.flops_per_second["bf16"], rates_of(GPU)
    assert seconds(Kernel(LARGE, 0, 0, "bf16", ATTENTION)) == pytest.approx(LARGE / peak / known.attention)
    backward = Kernel(LARGE, 0, 0, "bf16", ATTENTION + BACKWARD)
    assert seconds(backward) == pytest.approx(LARGE / peak / known.attention_backward)


def test_large_products_reach_the_rate_and_small_ones_do_not() -> None:
    peak, known = GPU.flops_per_second["bf16"], rates_of(GPU)
    large = product(1 << 17, 1 << 17, 1 << 17)
    assert seconds(large) == pytest.approx(large.flops / peak / known.matmul, rel=2e-3)
    by_size = [seconds(kernel) / kernel.flops for kernel in (product(n, 4096, n) for n in (256, 512, 1024, 4096))]
    assert all(larger < 0.9 * smaller for smaller, larger in pairwise(by_size[:3]))
    assert by_size[3] < by_size[2]
    by_depth = [seconds(product(4096, depth, 4096)) / depth for depth in (16, 64, 256, 4096)]
    assert all(deeper < 0.9 * flatter for flatter, deeper in pairwise(by_depth[:3]))


def test_half_of_the_gpu_is_idle_at_so_many_results() -> None:
    """Half of the rate there, a quarter never: a product's depth is split among idle multiprocessors."""
    side = 1024
    known = {"matmul_results": float(side * side), "matmul_depth": 0.0, "kernel_seconds": 0.0, "bandwidth": 1e9}
    full = product(side, side, side).flops / GPU.flops_per_second["bf16"] / rates_of(GPU).matmul
    assert seconds(product(side, side, side), **known) == pytest.approx(2 * full)
    assert seconds(product(side // 4, side, side), **known) == pytest.approx(2 * full / 4)
    assert seconds(product(2 * side, side, side), **known) == pytest.approx(1.5 * 2 * full)
    flat = known | {"matmul_results": 0.0, "matmul_depth": float(side)}
    assert seconds(product(side, side, side), **flat) == pytest.approx(2 * full)


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096), st.integers(2, 64))
def test_equal_products_of_one_op_take_as_long_as_in_several(rows: int, depth: int, columns: int, times: int) -> None:
    together = seconds(product(rows, depth, columns, launches=times))
    assert together == pytest.approx(times * seconds(product(rows, depth, columns)))


def test_what_moves_bytes_takes_their_time() -> None:
    bandwidth, known = GPU.bandwidth_bytes_per_second, rates_of(GPU)
    pause = 7 * known.kernel_seconds
    assert seconds(Kernel(0, 10**9, 7, "bf16")) == pytest.approx(1e9 / (bandwidth * known.bandwidth) + pause)
    dequantize = Kernel(0, 10**9, 7, "bf16", DEQUANTIZE)
    assert seconds(dequantize) == pytest.approx(1e9 / (bandwidth * known.dequantize) + pause)
    thin = Kernel(2 * 10**6, 10**9, 1, "bf16", MATMUL, 10**6)
    assert seconds(thin) == pytest.approx(1e9 / (bandwidth * known.bandwidth) + known.kernel_seconds)


def test_a_dtype_that_the_gpu_lacks_is_computed_in_fp32() -> None:
    v100 = card_of("v100")
    assert "bf16" not in v100.flops_per_second
    bf16, fp16, fp32 = (seconds(product(4096, 4096, 4096, dtype), v100) for dtype in ("bf16", "fp16", "fp32"))
    assert bf16 == fp32 > 2 * fp16


@given(
    flops=st.integers(0, 10**15),
    moved=st.integers(0, 10**12),
    launches=st.integers(1, 100),
    results=st.integers(1, 10**9),
    kind=st.sampled_from([MATMUL, ATTENTION, CAUSAL_ATTENTION + BACKWARD, DEQUANTIZE, ELEMENTWISE]),
    name=st.sampled_from(["rtx4090", "v100", "a100-80gb", "b300", "rtx2080ti"]),
    factor=st.floats(1.0, 4.0),
)
def test_a_faster_gpu_is_never_slower(
    flops: int, moved: int, launches: int, results: int, kind: str, name: str, factor: float
) -> None:
    """Neither one of more bandwidth nor one of more FLOP/s, whose share of the peak may fall with watts a FLOP/s."""
    flops = 0 if kind in (DEQUANTIZE, ELEMENTWISE) else max(1, flops)
    kernel, gpu = Kernel(flops, moved, launches, "fp16", kind, results), card_of(name)
    before = kernel_seconds(kernel, gpu, rates_of(gpu))
    for faster in (more_bandwidth(gpu, factor), more_flops(gpu, factor)):
        assert kernel_seconds(kernel, faster, rates_of(faster)) <= before * (1 + 1e-12)


def more_bandwidth(gpu: Gpu, factor: float) -> Gpu:
    return gpu.model_copy(update={"bandwidth_bytes_per_second": gpu.bandwidth_bytes_per_second * factor})


def more_flops(gpu: Gpu, factor: float) -> Gpu:
    return gpu.model_copy(
        update={"flops_per_second": {name: rate * factor for name, rate in gpu.flops_per_second.items()}}
    )


# -- a micro-step ------------------------------------------------------------------------------------------------------


def test_a_micro_step_takes_the_time_of_the_gpu_or_of_the_host() -> None:
    known = rates_of(GPU)
    kernels = [product(4096, 4096, 4096), Kernel(0, 10**6, 2, "bf16"), Kernel(0, 512, 1, "bf16")]
    large, copy, tiny = map(seconds, kernels)
    on_gpu = [3 * large + 10 * copy, 6 * large]
    launches = 3 + 20 + 6
    assert launches * known.launch_seconds < sum(on_gpu)

    def micro_step(host_seconds: float) -> tuple[float, float]:
        return micro_step_seconds(kernels, [(0, 3), (1, 10)], [(0, 6)], GPU, host_seconds)

    spare = sum(on_gpu) - launches * known.launch_seconds
    assert micro_step(0.0) == micro_step(0.9 * spare) == pytest.approx(tuple(on_gpu))
    longer = micro_step(spare + 1.0)
    assert sum(longer) == pytest.approx(sum(on_gpu) + 1.0)
    assert longer[0] / longer[1] == pytest.approx(on_gpu[0] / on_gpu[1])
    assert 2 * tiny < known.launch_seconds
    short = micro_step_seconds(kernels, [(2, 1000)], [(2, 500)], GPU)
    assert sum(short) == pytest.approx(1500 * known.launch_seconds)
    assert short[0] == pytest.approx(2 * short[1])


def test_small_steps_wait_for_the_host() -> None:
    """One token takes as long as some more, and on a slower GPU of the same rates as well; many do not."""

    def micro_step(gpu: Gpu, tokens: int) -> float:
        compute = vramplan.estimate(SMALL, gpu, method="full", sequence_length=tokens).compute
        assert compute is not None
        return compute.micro_step_seconds

    few = micro_step(GPU, 8)
    assert few == pytest.approx(micro_step(GPU, 64))
    assert few == pytest.approx(micro_step(card_of("rtx4080"), 8))
    assert micro_step(GPU, 4096) > 2 * few
    assert micro_step(card_of("rtx4080"), 4096) > 1.2 * micro_step(GPU, 4096)


def test_zero3_gathers_each_weight_at_the_hosts_pace() -> None:
    """On one GPU hooks run as well: in forward, in backward, and when a layer is recomputed."""

    def micro_step(**settings: Any) -> float:
        job = {"method": "full", "sequence_length": 8, "autocast": "none", **settings}
        compute = vramplan.estimate(SMALL, GPU, **job).compute
        assert compute is not None
        return compute.micro_step_seconds

    weights = 9 * LAYERS + 2
    for checkpointing, gathers in (("full", 3), ("none", 2)):
        zero2, zero3 = (micro_step(strategy=name, checkpointing=checkpointing) for name in ("zero2", "zero3"))
        assert zero3 - zero2 == pytest.approx(gathers * weights * rates_of(GPU).zero3_seconds, rel=0.05)


def test_the_optimizer_moves_its_states_or_waits_for_its_launches() -> None:
    known, gib = rates_of(GPU), 1 << 30
    fused = Job(optimizer="adamw_torch_fused", loop="plain")
    moved, few, many = (
        optimizer_seconds(fused, num_bytes, weights, GPU) - known.step_seconds
        for num_bytes, weights in ((gib, 1), (2, 10), (2, 10_000))
    )
    passes = 7  # weight, gradient and two states read; weight and two states written
    assert moved == pytest.approx(passes * gib / (GPU.bandwidth_bytes_per_second * known.bandwidth))
    assert few > 0.0
    assert many == pytest.approx(1000 * few)
    clipped = optimizer_seconds(fused.model_copy(update={"loop": "trainer"}), gib, 1, GPU) - known.step_seconds
    assert clipped > 1.2 * moved


# -- rates of GPUs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("h100", "9.0"),
        ("rtx4090", "8.9 geforce"),
        ("rtx4090-laptop", "8.9 geforce"),
        ("l40s", "8.9"),
        ("rtx6000-ada", "8.9"),
        ("rtxa6000", "8.6"),
        ("rtx3090", "8.6 geforce"),
        ("v100", "7.0"),
        ("gb10", "12.1"),
        ("mi300x", "AMD"),
        ("ascend-910c", "Huawei"),
    ],
)
def test_generations(gpu: str, name: str) -> None:
    assert generation_name(card_of(gpu)) == name


def test_a_generation_has_its_own_rates_and_those_of_all_gpus() -> None:
    for name, own in LEARNED["generations"].items():
        gpu = next(gpu for gpu in all_gpus() if generation_name(gpu) == name)
        expected = {**LEARNED["all"], **{key: value for key, value in own.items() if key in Rates._fields}}
        assert rates_of(gpu)._asdict() == expected, name
        found = generation_of(gpu)
        assert (found.runs, found.relative_error) == (own["runs"], own["relative_error"])


def test_the_power_limit_tells_of_a_generation_without_runs() -> None:
    gpu = card_of("b300")
    assert generation_name(gpu) not in LEARNED["generations"]
    assert gpu.power_watts is not None

    def share(**changes: Any) -> float:
        found = generation_of(gpu.model_copy(update=changes))
        assert (found.runs, found.relative_error) == (0, LEARNED["unseen_error"])
        assert found.rates._replace(matmul=0.0)._asdict() == LEARNED["all"] | {"matmul": 0.0}
        return found.rates.matmul

    per_teraflop = gpu.power_watts / (gpu.flops_per_second["fp16"] / 1e12)
    assert share() == pytest.approx(LEARNED["power_factor"] * per_teraflop ** LEARNED["power_exponent"])
    double = share(power_watts=2 * gpu.power_watts)
    assert double == pytest.approx(share() * 2 ** LEARNED["power_exponent"])
    assert double > share()
    assert share(power_watts=10**6) == 1.0
    assert share(power_watts=None) == share(flops_per_second={"fp32": 1e13}) == LEARNED["all"]["matmul"]
    known = card_of("h100")
    assert rates_of(known) == rates_of(known.model_copy(update={"power_watts": 10**6}))


def test_the_file_of_rates() -> None:
    """Shares of nominal rates are below 1 but for clocks above the nominal boost; bands and times are bounded."""
    assert set(LEARNED) == {"all", "power_factor", "power_exponent", "unseen_error", "generations"}
    assert set(LEARNED["all"]) == set(Rates._fields)
    for name, own in {"all": LEARNED["all"], **LEARNED["generations"]}.items():
        assert 0.4 < own["matmul"] < 1.1, name
        assert 0.3 < own.get("attention_backward", 0.5) < own.get("attention", 0.6) < 0.9, name
        assert 0.7 < own.get("bandwidth", 0.9) < 1.0, name
    shared = LEARNED["all"]
    assert 0.1 < shared["dequantize"] < shared["bandwidth"]
    assert 16 <= shared["matmul_depth"] <= 256
    assert 1e5 < shared["matmul_results"] < 1e7  # a tile of 128 x 128 for each multiprocessor is 1 to 3 million
    assert 1e-6 < shared["kernel_seconds"] < shared["launch_seconds"] < 1e-4
    assert shared["launch_seconds"] < shared["zero3_seconds"] < 1e-3 < shared["step_seconds"] < 0.2
    assert 0.0 < LEARNED["power_exponent"] < 1.0, "or a GPU of more FLOP/s would be slower"
    for name, own in LEARNED["generations"].items():
        assert set(own) <= {"matmul", "attention", "attention_backward", "bandwidth", "runs", "relative_error"}, name
        assert own["runs"] >= 1, name
        assert 0.01 < own["relative_error"] <= LEARNED["unseen_error"] < 1.0, name
        assert any(generation_name(gpu) == name and is_timed(gpu) for gpu in all_gpus()), name


def test_the_file_is_read_again_after_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = card_of("b300")
    before = generation_of(gpu)
    with file_of_rates(LEARNED | {"unseen_error": 0.5}, tmp_path, monkeypatch):
        assert generation_of(gpu).relative_error == 0.5
        monkeypatch.setattr(rates, "_PATH", tmp_path / "none")
        assert generation_of(gpu).relative_error == 0.5, "it is read once"
    assert generation_of(gpu) == before


# -- whole steps -------------------------------------------------------------------------------------------------------


def time_of(gpu: Gpu, **settings: Any) -> StepTime:
    found = vramplan.estimate(SMALL, gpu, **{"method": "full", "sequence_length": TOKENS, **settings}).step_time
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_every_gpu_has_a_time_within_what_it_can_compute(dtype: str) -> None:
    """No step is faster than its operations at the peak, half of attention's skipped, or more than 30 times as slow."""
    gpus = [gpu for gpu in TIMED if gpu.supports(dtype)]
    assert len(gpus) > 80
    for runs_flash in (True, False):
        alike = [gpu for gpu in gpus if gpu.runs_flash == runs_flash]
        if not alike:
            assert (runs_flash, dtype) == (False, "bf16")
            continue
        settings = {"method": "full", "dtype": dtype, "sequence_length": 4096, "checkpointing": "none"}
        step = begin(spec_of(SMALL), complete_job(spec_of(SMALL), alike[0], settings), alike[0])
        flops = step.complete().flops_per_micro_step
        assert step.compute is not None
        for gpu in alike:
            time = step.compute(gpu)
            least = flops / gpu.flops_per_second[dtype]
            assert min(time.forward_seconds, time.backward_seconds) > 0.2 * time.micro_step_seconds, gpu.name
            assert 0.7 * least < time.micro_step_seconds < 30 * least, gpu.name
            assert 0.0 < time.optimizer_seconds < 1.0, gpu.name


@pytest.mark.parametrize("name", ["rtx4090", "v100", "b300"])
def test_no_step_takes_longer_on_a_faster_gpu(name: str) -> None:
    gpu = card_of(name)
    long: dict[str, Any] = {"sequence_length": 8192, "micro_batch_size": 8}
    for settings in ({}, {"method": "lora", "quantize": "nf4"}, {"num_gpus": 2}, {**long, "num_gpus": 2}):
        before = time_of(gpu, **settings).seconds
        for faster in (more_bandwidth(gpu, 2.0), more_flops(gpu, 2.0)):
            assert time_of(faster, **settings).seconds <= before * (1 + 1e-12), settings
    assert time_of(more_flops(gpu, 2.0), **long).seconds < 0.9 * time_of(gpu, **long).seconds
    assert time_of(more_bandwidth(gpu, 2.0), **long).seconds < 0.9 * time_of(gpu, **long).seconds


def test_the_parts_of_a_step_and_its_band() -> None:
    time = time_of(GPU, num_gpus=2, gradient_accumulation_steps=4)
    assert min(time.micro_step_seconds, time.communication_seconds, time.optimizer_seconds) > 0.0
    whole = 4 * time.micro_step_seconds + time.communication_seconds + time.optimizer_seconds
    assert time.seconds == pytest.approx(whole)
    assert time.relative_error == generation_of(GPU).relative_error
    assert time.low_seconds == pytest.approx(whole / (1 + time.relative_error))
    assert time.high_seconds == pytest.approx(whole * (1 + time.relative_error))
    settings: dict[str, Any] = {"num_gpus": 2, "gradient_accumulation_steps": 4}
    compute = vramplan.estimate(SMALL, GPU, method="full", sequence_length=TOKENS, **settings).compute
    assert compute is not None
    assert time.micro_step_seconds == pytest.approx(compute.forward_seconds + compute.backward_seconds)
    wider = time_of(card_of("b300"))
    assert wider.high_seconds / wider.seconds == pytest.approx(1 + LEARNED["unseen_error"])


def test_the_time_in_the_answer() -> None:
    words = ("estimate", SMALL, "--gpu", "rtx4090", "--method", "full", "--seq-len", str(TOKENS), "--accumulation", "4")
    time, answer = time_of(GPU, gradient_accumulation_steps=4), cli_json(*words)["step_time"]
    for name in ("seconds", "low_seconds", "high_seconds", "micro_step_seconds", "optimizer_seconds"):
        assert answer[name] == pytest.approx(getattr(time, name), abs=1e-6), name
    assert answer["communication_seconds"] == 0.0
    assert answer["samples_per_second"] == pytest.approx(4 / time.seconds, abs=1e-4)


# -- where it is not known ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("v100", True),
        ("t4", True),
        ("rtx2060", True),
        ("titan-v", True),
        ("gtx1660ti", False),  # Turing without tensor cores
        ("p100", False),
        ("p40", False),
        ("gtx1080ti", False),
        ("mi300x", False),
        ("ascend-910c", False),
        ("intel-arc-a770-16gb", False),
    ],
)
def test_times_are_known_on_gpus_with_tensor_cores(name: str, known: bool) -> None:
    gpu = card_of(name)
    assert is_timed(gpu) == known
    found = vramplan.estimate(SMALL, gpu, method="full", sequence_length=TOKENS)
    assert (found.step_time is not None) == known
    assert any("the time of a step is not known: rates" in note for note in found.notes) != known
    if not known:
        answer = cli_json("estimate", SMALL, "--gpu", name)
        assert answer["step_time"] is None


def test_without_the_rate_of_a_link_there_is_no_time() -> None:
    nodes: dict[str, Any] = {"method": "full", "num_gpus": 4, "num_nodes": 2}
    for gpu, known in ((card_of("h100"), False), (with_links(card_of("h100"), network_gbits=400), True)):
        assert (vramplan.estimate(SMALL, gpu, **nodes).step_time is not None) == known


def test_the_speeds_of_a_table_are_those_of_estimates() -> None:
    """Tokens a second at the largest micro-batch that fits."""
    cells = table("speed", "rtx3060-12gb,h100-sxm")
    largest = table("max-batch", "rtx3060-12gb,h100-sxm")
    assert len(cells) == len(largest) == 8
    for (gpu, method, length), cell in cells.items():
        micro = largest[gpu, method, length]["max_micro_batch_size"]
        time = time_of(card_of(gpu), method=method, sequence_length=length, micro_batch_size=micro)
        assert cell["tokens_per_second"] == round(micro * length / time.seconds), (gpu, method, length)


def test_a_table_has_no_speed_where_no_time_is_known() -> None:
    unknown = [cell for (gpu, *_), cell in table("speed", "h100-sxm,mi300x,p100-16gb").items() if gpu != "h100-sxm"]
    assert len(unknown) == 8
    for cell in unknown:
        assert cell["tokens_per_second"] is None
        assert "the time of a step is not known" in cell["refused"]
    refused = cli("table", "--models", SMALL, "--gpus", "mi300x", "--show", "speed")
    assert refused.returncode == 2
    assert "the time of a step is not known" in " ".join(refused.stderr.split())


def table(show: str, gpus: str) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Cells by GPU, method and length."""
    words = ("--models", SMALL, "--methods", "full,lora", "--seq-lens", "512,4096", "--gpus", gpus, "--show", show)
    cells = json.loads(cli("table", *words, "--format", "json").stdout)["cells"]
    return {(cell["gpu"], cell["method"], cell["sequence_length"]): cell for cell in cells}


# -- what is learned ---------------------------------------------------------------------------------------------------


def test_the_rates_are_learned_from_all_published_runs() -> None:
    """A run that is added is learned from: `python -m tests.learn_times`."""
    counts = Counter(generation_name(run.card) for run in load_times(PUBLISHED))
    assert counts == {name: own["runs"] for name, own in LEARNED["generations"].items()}


def test_the_file_has_what_learning_writes() -> None:
    learning, cases = learned_from(("rtxpro-6000-blackwell", "rtx3090ti"), at_most=10)
    rates_now = learning.learn(cases, sweeps=1)
    errors = {case.run.id: 0.1 for case in cases}
    written = learning.as_rates(cases, rates_now, errors, [0.2, 0.3])
    assert list(written) == list(LEARNED)
    assert list(written["all"]) == list(LEARNED["all"])
    assert written["unseen_error"] == pytest.approx(math.exp(0.29) - 1, abs=1e-3)
    assert [own["runs"] >= learning.LEAST_RUNS for own in written["generations"].values()] == [True, False]
    for name, own in written["generations"].items():
        assert own["runs"] == sum(case.generation == name for case in cases)
        assert set(own) == {"matmul", "runs", "relative_error"} | (
            {"attention", "attention_backward", "bandwidth"} if own["runs"] >= learning.LEAST_RUNS else set()
        )
        assert own["relative_error"] == written["unseen_error"], "too few runs for a band of their own"
    for own in LEARNED["generations"].values():
        assert ("bandwidth" in own) == ("attention" in own) == (own["runs"] >= learning.LEAST_RUNS)
        if own["runs"] < learning.LEAST_COVERED:
            assert own["relative_error"] == LEARNED["unseen_error"]


@pytest.mark.parametrize("slower", [1.0, 100.0])
def test_what_learning_computes_is_what_an_estimate_says(
    slower: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same time of every run, to the rounding of the rates; on a host of which most steps wait as well."""
    learning, cases = learned_from(("a100-80gb-sxm", "rtx4090", "rtx3090", "v100-16gb-sxm2", "h100-sxm"), at_most=4)
    host = ("launch_seconds", "zero3_seconds", "step_seconds")
    everywhere = {**LEARNED["all"], **{name: slower * LEARNED["all"][name] for name in host}}
    learned = learning.Learned()
    learned.all = {name: everywhere.get(name, 0.0) for name in learning.PRIORS}
    learned.all["attention_ratio"] = everywhere["attention"] / everywhere["attention_backward"]
    for name, own in LEARNED["generations"].items():
        learned.generations[name] = {key: value for key, value in own.items() if key in learning.OF_GENERATION}
    seconds = learning.np.exp(learning.Table(cases).predict(learned))
    assert {"ddp", "fsdp", "zero3"} <= {case.job.strategy for case in cases}
    with file_of_rates(LEARNED | {"all": everywhere}, tmp_path, monkeypatch):
        for case, predicted in zip(cases, seconds, strict=True):
            found = begin(case.run.spec, case.job, case.gpu).complete().step_time
            assert found is not None
            assert found.seconds == pytest.approx(float(predicted), rel=5e-3), case.run.id


@contextmanager
def file_of_rates(learned: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other rates are in the file, and read."""
    path = folder / "rates.json"
    path.write_text(json.dumps(learned))
    try:
        with monkeypatch.context() as patched:
            patched.setattr(rates, "_PATH", path)
            rates.forget()
            yield
    finally:
        rates.forget()


@cache
def learned_from(gpus: tuple[str, ...], at_most: int = 1) -> tuple[Any, list[Any]]:
    """The module that learns, and published runs on each GPU: so many of each publication."""
    pytest.importorskip("numpy")
    from tests import learn_times

    runs: dict[tuple[str, str], list[TimedRun]] = {}
    for run in load_times(PUBLISHED):
        if run.card.name in gpus:
            runs.setdefault((run.group, run.card.name), []).append(run)
    cases = learn_times.cases_of(run for group in runs.values() for run in group[:: -(-len(group) // at_most)])
    assert {case.gpu.name for case in cases} == set(gpus)
    return learn_times, cases
