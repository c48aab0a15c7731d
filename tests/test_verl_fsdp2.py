"""verl's FSDP 2, its fused heads, and the configuration of verl that comes nearest to one that is not modelled."""

from __future__ import annotations

from typing import Any

import pytest

from tests.test_verl_rl import ACTOR, BATCH, DEFAULTS, MODEL, QWEN, REF, ROLLOUT, line, read_line, refusal
from vramplan import estimate
from vramplan.analytic.strategies.fsdp2_columns import shared_dimension
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.detect import from_line
from vramplan.planner.read_config import read

FSDP, SECOND = f"{ACTOR}.fsdp_config", f"{ACTOR}.strategy=fsdp2"
SHARDED = {"version": 2, "reshard_after_forward": True, "reduce_dtype": "fp32", "sync_each_batch": True}
VERL = {name: value for name, value in DEFAULTS["verl"].items() if name != "keeps_root"}
QWEN_7B = "Qwen/Qwen2.5-7B-Instruct"
PPO = ("algorithm.adv_estimator=gae", f"critic.model.path={QWEN}")


@pytest.mark.parametrize(
    ("overrides", "update"),
    [
        ((), {}),
        ((f"{FSDP}.offload_policy=True", f"{FSDP}.param_offload=True"), {"offload": "all"}),
        ((f"{FSDP}.forward_prefetch=True",), {"fsdp": {**SHARDED, "forward_prefetch": True}}),
        ((f"{FSDP}.reshard_after_forward=False",), {"fsdp": {**SHARDED, "reshard_after_forward": False}}),
        ((f"+{FSDP}.mixed_precision.reduce_dtype=bf16",), {"fsdp": {**SHARDED, "reduce_dtype": "bf16"}}),
        ((f"{FSDP}.strategy=fsdp2", f"{REF}.strategy=fsdp2"), {}),
        ((f"{MODEL}.use_fused_kernels=True",), {"verl": {**VERL, "fused_head": "torch"}}),
        ((f"{MODEL}.use_fused_kernels=True", f"{MODEL}.fused_kernel_options.impl_backend=triton"),
         {"verl": {**VERL, "fused_head": "triton"}}),
    ],
)  # fmt: skip
def test_settings(overrides: tuple[str, ...], update: dict[str, Any]) -> None:
    job = read_line(SECOND, *overrides).job
    assert job == {**DEFAULTS, "fsdp": SHARDED, "verl": VERL, **update}
    estimate(QWEN, "h100", **job)  # raises for what cannot run


@pytest.mark.parametrize(
    ("version", "own"),
    [
        ("0.5.0", {"stages_all", "head_in_root", "keeps_root"}),
        ("0.6.1", {"stages_all", "head_in_root"}),
        ("0.7.1", {"stages_all"}),
        ("0.9.1", set()),
    ],
)
def test_versions(version: str, own: set[str]) -> None:
    padding = f"{MODEL}.use_remove_padding=True"
    verl = read_line(SECOND, padding, version=version).job["verl"]
    assert {name for name in ("stages_all", "head_in_root", "keeps_root") if verl.get(name)} == own
    prefetched = read_line(SECOND, padding, f"{FSDP}.forward_prefetch=True", version=version).job["fsdp"]
    assert ("forward_prefetch" in prefetched) == (version == "0.9.1")


@pytest.mark.parametrize(("version", "shares"), [("0.5.0", False), ("0.6.1", True), ("0.7.1", True), ("0.8.0", False)])
def test_columns_are_shared_by_version(version: str, shares: bool) -> None:
    verl = read_line(SECOND, f"{MODEL}.use_remove_padding=True", version=version).job["verl"]
    assert verl.get("shares_columns", False) == shares


@pytest.mark.parametrize(("shape", "gpus", "dimension"), [((3420, 1280), 8, 1), ((3424, 1280), 8, 0), ((3420,), 8, 0)])
def test_the_first_dimension_that_gpus_divide_is_shared(shape: tuple[int, ...], gpus: int, dimension: int) -> None:
    assert shared_dimension(shape, gpus) == dimension


@pytest.mark.parametrize(("version", "size", "keeps"), [("0.7.1", -1, False), ("0.8.0", -1, True), ("0.9.1", 8, False)])
def test_the_root_stays_under_fsdp_1(version: str, size: int, keeps: bool) -> None:
    overrides = (f"{MODEL}.use_remove_padding=True", f"{FSDP}.fsdp_size={size}")
    assert read_line(*overrides, version=version).job["verl"].get("keeps_root", False) == keeps


def test_a_reference_keeps_its_root_on_the_gpu() -> None:
    """Embedding, head and norm of 0.5 B in bf16, gathered once and never dropped."""
    reference = (f"{ACTOR}.use_kl_loss=True", f"{REF}.log_prob_micro_batch_size_per_gpu=8")
    with_it, without = (estimate(QWEN, "h100", **read_line(*some).job).phases["backward"] for some in (reference, ()))
    assert with_it - without == pytest.approx(2 * 151_936 * 896, rel=0.01)


def test_a_critic_of_its_own_version() -> None:
    both = read_line(SECOND, "critic.strategy=fsdp2", "critic.fsdp.offload_policy=True", *PPO).job["verl"]["critic"]
    assert (both["fsdp_version"], both["offload_policy"]) == (2, True)
    assert "fsdp_version" not in read_line(*PPO).job["verl"]["critic"]
    job = read_line(SECOND, "critic.strategy=fsdp2", *PPO).job
    here, away = (
        estimate(QWEN, "h100", **{**job, "verl": {**job["verl"], "critic": {**job["verl"]["critic"], **own}}}).phases
        for own in ({}, {"offload_policy": True})
    )
    assert here["scoring"] - away["scoring"] == pytest.approx(3 * 4 * 494_033_664 / 8, rel=0.01)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((SECOND, "trainer.n_gpus_per_node=1", f"{ROLLOUT}.tensor_model_parallel_size=1"), "one GPU under fsdp2"),
        ((SECOND, f"{FSDP}.fsdp_size=4"), "fsdp_size: 4 is not modelled with fsdp2"),
        ((f"{FSDP}.forward_prefetch=True",), "forward_prefetch: True is not modelled with fsdp yet"),
        ((f"+{FSDP}.mixed_precision.param_dtype=fp32",), "param_dtype: fp32 is not modelled"),
    ],
)
def test_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read_line(*overrides)


def test_what_offload_policy_does_under_fsdp_1() -> None:
    parsed = read_line(f"{FSDP}.offload_policy=True")
    assert "offload" not in parsed.job
    assert any("has no effect under fsdp" in note.text for note in parsed.notes)


@pytest.mark.parametrize(
    ("overrides", "near"),
    [
        ((f"{ROLLOUT}.name=trtllm", SECOND), f"set={ROLLOUT}.name=vllm"),
        ((f"{ROLLOUT}.name=trtllm", *PPO), f"set={ROLLOUT}.name=vllm"),
        ((f"{ACTOR}.strategy=megatron",), f"set={ACTOR}.strategy=fsdp"),
        ((f"{MODEL}.enable_activation_offload=True", f"{ACTOR}.use_torch_compile=False"),
         f"set={ACTOR}.use_torch_compile=true set={MODEL}.enable_activation_offload=False"),
        ((f"{REF}.model.path=other",), f"set={REF}.model.path=null"),
    ],
)  # fmt: skip
def test_the_nearest_is_verls_own(overrides: tuple[str, ...], near: str) -> None:
    """With the critic, and with all that is modelled."""
    text = refusal(*BATCH, *overrides)
    assert text.endswith(f"check it with {near}")
    changes = dict(change.partition("set=")[2].split("=") for change in near.split())
    read(from_line(line(*BATCH, *overrides), None, {}).with_settings(changes), 1)


def test_fused_heads_hold_no_logits() -> None:
    """4 x 1024 tokens by 151,936 entries in bf16, and in backward not even 2 bytes of each."""
    whole, torch, triton = (
        estimate(QWEN, "h100", **{**DEFAULTS, "verl": {**VERL, **own}}).phases
        for own in ({}, {"fused_head": "torch"}, {"fused_head": "triton"})
    )
    logits = 4 * 1024 * 151_936 * 2
    assert whole["forward"] - triton["forward"] > 0.85 * logits
    assert triton["forward"] < torch["forward"] < whole["forward"]
    assert torch["backward"] - triton["backward"] > 512 * 151_936 * 8


def test_a_fused_head_beside_a_head_of_its_own_group_stops_verl() -> None:
    """torch multiplies a plain tensor by no DTensor: 7 B's head is not tied to the embedding."""
    job = {**DEFAULTS, "fsdp": SHARDED, "verl": {**VERL, "fused_head": "torch"}, "num_gpus": 8}
    estimate(QWEN, "h100", **job)
    with pytest.raises(ConfigError, match="use_fused_kernels"):
        estimate(QWEN_7B, "h100", **job)
    estimate(QWEN_7B, "h100", **{**job, "verl": {**job["verl"], "head_in_root": True}})
