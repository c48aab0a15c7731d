"""verl's actor on one GPU, where torch's FSDP shards nothing (NO_SHARD): cast copies of units, whole gradients."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from tests.test_verl_actor import FSDP, STEP
from vramplan import estimate
from vramplan.frameworks.detect import from_line
from vramplan.planner.read_config import read

WEIGHTS, HEAD = 494_032_768, 151_936 * 896
GRPO = (
    "algorithm.adv_estimator=grpo", "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B", "trainer.n_gpus_per_node=1",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
)  # fmt: skip


def alone(**changes: Any) -> Any:
    own = {"fsdp": FSDP | {"sync_each_batch": True}, "verl": {}, "num_gpus": 1}
    return estimate("qwen2.5-0.5b", "h200", **{**STEP, **own, **changes})


def test_what_is_read() -> None:
    job = read(from_line(f"python3 -m verl.trainer.main_ppo {shlex.join(GRPO)}", None, {}), 1, None).job
    assert (job["num_gpus"], job["strategy"], job["gradient_accumulation_steps"]) == (1, "fsdp", 64)


def test_weights_are_whole() -> None:
    assert alone().phases["loaded"] > 4 * WEIGHTS
    assert alone(dtype="bf16", autocast="none").phases["loaded"] == pytest.approx(
        alone().phases["loaded"] - 2 * WEIGHTS, rel=0.001
    )


def test_half_precision_weights_are_used_as_they_are() -> None:
    """fp32 weights are cast a unit at a time, the root from a forward's beginning to its end, where logits are."""
    full, half = (alone(dtype=dtype, autocast=casts).phases for dtype, casts in (("fp32", "bf16"), ("bf16", "none")))
    copies = (full["scoring"] - half["scoring"]) - 3 * 2 * WEIGHTS  # weights and states have half the bytes
    assert copies == pytest.approx(2 * HEAD, rel=0.001)


def test_adapters_are_taken_out_without_gathering() -> None:
    lora: dict[str, Any] = {
        "method": "lora",
        "dtype": "bf16",
        "autocast": "none",
        "lora_dtype": "bf16",
        "generate_with": "vllm_server",
    }
    lora |= {"vllm_share": 0.3, "verl": {"bucket_mib": 1}}
    alone_bytes, shared = (alone(num_gpus=cards, **lora).phases["generation"] for cards in (1, 2))
    of_layers = WEIGHTS - 151_936 * 896  # own parts in bf16, which two GPUs copy beside one whole weight
    copied = of_layers * 2 / 2 + 2 * 4864 * 896
    assert alone_bytes - shared == pytest.approx(WEIGHTS * 2 / 2 - 2 * WEIGHTS - copied, rel=0.05)


def test_the_answer_says_that_it_was_not_compared() -> None:
    assert any("FSDP on one GPU" in note for note in alone().notes)
    assert not any("FSDP on one GPU" in note for note in alone(num_gpus=2).notes)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_torch_casts_whole_units_and_reduces_nothing() -> None:
    """The events of a unit of two weights on the CPU: a cast copy, one flat gradient, and that in fp32."""
    torch = pytest.importorskip("torch")
    from torch import distributed
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    store = distributed.HashStore()
    distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        layer = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(2)))
        model = FullyShardedDataParallel(layer, mixed_precision=half, device_id=torch.device("cpu"))
        (weight,) = model.parameters()
        model(torch.randn(4, 1024)).sum().backward()
        assert (weight.dtype, weight.grad.dtype) == (torch.float32, torch.float32)
        assert weight.numel() == weight.grad.numel() == 2 * 1024 * 1024
        first = weight.grad
        model(torch.randn(4, 1024)).sum().backward()
        assert weight.grad.data_ptr() == first.data_ptr()  # to which later micro-batches are added
    finally:
        distributed.destroy_process_group()
