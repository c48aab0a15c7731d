"""Buffers of CUDA's kernels and the choice of the attention kernel, against what PyTorch 2.13 did.

The sizes were read off the histories of its caching allocator (torch.cuda.memory._snapshot), of the build for CUDA 13
with stand-ins for CUDA's libraries, whose host code decides all of them.
"""

from __future__ import annotations

import pytest

from tests.helpers import card_of
from vramplan.analytic.estimator import begin
from vramplan.inputs.catalog import find_gpu, find_model
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.memory.fused_attention import fused_attention
from vramplan.memory.kernel_buffers import BUFFERS, norm_parts

A100, RTX4090 = find_gpu("a100-80gb-sxm"), find_gpu("rtx4090")


def gpu_of(capability: str) -> Gpu:
    return A100.model_copy(update={"compute_capability": capability, "multiprocessors": 108})


@pytest.mark.parametrize(
    ("kernel", "numbers", "gpu", "size"),
    [
        ("sum", (12608, 768), A100, 77_463_552),
        ("sum", (12608, 3072), A100, 113_246_208),
        ("sum", (12608, 3072), RTX4090, 100_663_296),
        ("sum", (4096, 768), A100, 25_165_824),
        ("sum", (12000, 768), A100, 73_924_608),
        ("sum", (512, 768), A100, 0),
        ("embedding", (4096, 50257, 768), A100, 13_839_360),
        ("embedding", (12288, 32768, 4096), A100, 221_446_144),
        ("embedding", (8192, 512, 768), A100, 4_088_832),
        ("embedding", (8192, 272, 768), A100, 8_728),
        ("embedding", (8192, 2, 768), A100, 6_568),
        ("embedding", (3072, 50257, 768), A100, 0),
        ("flash splits", (1, 12, 300, 300, 64), A100, 1_843_200),
        ("flash split sums", (1, 12, 300, 300, 64), A100, 28_800),
        ("flash splits", (1, 8, 1024, 1024, 256), A100, 25_165_824),
        ("flash splits", (1, 14, 512, 512, 64), A100, 0),
        ("flash splits", (1, 14, 512, 512, 64), RTX4090, 3_670_016),
    ],
)
def test_size_on_a_gpu(kernel: str, numbers: tuple[int, ...], gpu: Gpu, size: int) -> None:
    assert BUFFERS[kernel](numbers, "bf16", gpu) == size


@pytest.mark.parametrize(
    ("capability", "dtype", "numbers", "size"),
    [
        ("8.0", "bf16", (4, 16, 1024, 1024, 64, 64), 16_793_600),
        ("8.0", "fp32", (4, 16, 1024, 1024, 64, 64), 16_793_600),
        ("8.0", "bf16", (2, 4, 500, 500, 128, 128), 2_097_664),
        ("8.0", "fp32", (2, 4, 500, 500, 128, 128), 2_098_176),
        ("8.0", "bf16", (4, 16, 1024, 1024, 136, 136), 75_522_048),
        ("8.0", "bf16", (2, 4, 500, 500, 136, 136), 11_535_872),
        ("8.0", "bf16", (4, 16, 1024, 1024, 192, 128), 69_230_592),
        ("8.0", "fp32", (4, 16, 1024, 1024, 256, 256), 67_141_632),
        ("7.5", "fp16", (4, 16, 1024, 1024, 128, 128), 33_570_816),
        ("7.5", "fp32", (4, 16, 1024, 1024, 128, 128), 33_587_200),
        ("8.9", "bf16", (1, 4, 64, 64, 72, 72), 4 * 65_568),
        ("8.9", "bf16", (1, 4, 192, 192, 128, 128), 4 * 295_008),
        ("12.0", "bf16", (1, 4, 192, 192, 72, 72), 4 * 295_008),
    ],
)
def test_accumulators_of_the_memory_efficient_kernel(
    capability: str, dtype: str, numbers: tuple[int, ...], size: int
) -> None:
    assert BUFFERS["efficient backward"](numbers, dtype, gpu_of(capability)) == size


def test_norms_have_parts_by_the_largest_tensor() -> None:
    assert norm_parts(41, 151936 * 896) == 340_792
    assert norm_parts(4, 10) == 16


@pytest.mark.parametrize(
    ("capability", "dims", "dropout", "kernel"),
    [
        ("7.5", (64, 64), 0.0, ""),
        ("8.0", (200, 200), 0.0, "flash"),
        ("8.9", (200, 200), 0.0, ""),
        ("8.9", (256, 256), 0.0, "flash"),
        ("8.9", (256, 256), 0.1, ""),
        ("9.0", (64, 64), 0.0, "cudnn"),
        ("9.0", (64, 64), 0.1, "flash"),
        ("9.0", (64, 64), 0.125, "cudnn"),
        ("9.0", (60, 60), 0.0, "flash"),
        ("9.0", (256, 256), 0.0, "cudnn"),
        ("9.0", (192, 128), 0.0, "cudnn"),
        ("9.0", (264, 264), 0.0, ""),
        ("10.0", (128, 128), 0.0, "cudnn"),
        ("10.0", (160, 160), 0.0, "flash"),
        ("10.0", (192, 128), 0.0, "cudnn"),
        ("10.3", (128, 128), 0.0, "cudnn"),
        ("12.0", (128, 128), 0.0, "flash"),
    ],
)
def test_fused_kernel_without_a_mask(capability: str, dims: tuple[int, int], dropout: float, kernel: str) -> None:
    gpu = fused_attention(gpu_of(capability))
    if gpu.runs_cudnn(*dims, dropout, 1024):
        assert kernel == "cudnn"
    else:
        assert kernel == ("flash" if gpu.runs_flash(*dims, dropout, trains=True) else "")


# allocated and reserved bytes of PyTorch, of a Trainer's step: kernels' buffers, and where cuBLAS's workspaces lie
STEPS = {
    ("qwen2.5-0.5b", "rtx4090", "lora", 1024, 2, "none"): (7_886_557_696, 8_761_901_056),
    ("gpt2", "a100-80gb-sxm", "full", 1024, 4, "none"): (6_529_238_528, 7_361_003_520),
    ("qwen2.5-0.5b", "a100-80gb-sxm", "full", 1024, 4, "full"): (10_670_812_672, 12_633_243_648),
    ("pythia-1.4b", "a100-80gb-sxm", "full", 1024, 4, "full"): (11_528_372_224, 13_948_157_952),
    ("vit-base-patch16-224-in21k", "a100-80gb-sxm", "full", None, 64, "none"): (5_446_067_712, 5_830_082_560),
}


@pytest.mark.parametrize("settings", STEPS, ids=lambda settings: f"{settings[0]} {settings[2]}")
def test_step_is_that_of_pytorch(settings: tuple[str, str, str, int | None, int, str]) -> None:
    model, gpu, method, length, micro, checkpointing = settings
    spec = find_model(model)
    job = Job(method=method, micro_batch_size=micro, checkpointing=checkpointing, lora_rank=8, loop="trainer")  # type: ignore[arg-type]
    if length is None:
        from vramplan.inputs.model_inputs import complete

        job = Job(**complete(spec, job.model_dump(exclude_unset=True)))  # type: ignore[arg-type]
    else:
        job = job.model_copy(update={"sequence_length": length})
    estimate = begin(spec, job, find_gpu(gpu)).complete()
    allocated, reserved = STEPS[settings]
    assert estimate.peak_allocated_bytes == pytest.approx(allocated, rel=2e-5)
    assert estimate.peak_reserved_bytes == pytest.approx(reserved, rel=5e-4)


def test_partial_sums_grow_with_the_batch_as_kernels_decide() -> None:
    """Between simulated micro-batches, too, where tensors grow linearly."""
    from vramplan.analytic.estimator import Estimator

    spec, gpu = find_model("gpt2"), card_of("a100-80gb-sxm")
    job = Job(method="full", micro_batch_size=6, sequence_length=1024, checkpointing="none")
    shared = Estimator()
    for micro in (2, 6, 17):
        again = job.model_copy(update={"micro_batch_size": micro})
        scaled, simulated = shared(spec, again, gpu, several=True).complete(), begin(spec, again, gpu).complete()
        assert scaled.peak_allocated_bytes == simulated.peak_allocated_bytes
        assert scaled.peak_reserved_bytes == simulated.peak_reserved_bytes
