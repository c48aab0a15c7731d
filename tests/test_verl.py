"""verl's supervised fine-tuning as `check` reads it, against the defaults of its sources (0.9.1)."""

from __future__ import annotations

import heapq
import random
from pathlib import Path
from typing import Any

import pytest

import vramplan
from vramplan import check as check_config
from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.frameworks.detect import from_line, from_path
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers.verl_batches import LINEAR_WORK, most_tokens
from vramplan.frameworks.syntax import hydra
from vramplan.planner.read_config import read

QWEN = "Qwen/Qwen2.5-0.5B"
DEFAULTS = {
    "loop": "plain",
    "optimizer": "adamw_torch",
    "attention": "flash",
    "checkpointing": "full",
    "loss": "log_probs",
    "num_gpus": 8,
    "strategy": "fsdp",
    "fsdp": {
        "version": 1,
        "reshard_after_forward": True,
        "use_orig_params": False,
        "backward_prefetch": "pre",
        "reduce_dtype": "fp32",
        "sync_each_batch": True,
    },
    "method": "full",
    "dtype": "fp32",
    "autocast": "bf16",
    "batches": "packed",
    "sequence_length": 8192,
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 4,
    "verl": {"samples": 256},
}
"""By config/sft_trainer_engine.yaml, engine/fsdp.yaml, model/hf_model.yaml, optim/fsdp.yaml: 32 samples of up to 1,024
tokens on each of 8 GPUs, by a budget of 8,192."""


FSDP2 = {"version": 2, "reshard_after_forward": True, "reduce_dtype": "fp32", "sync_each_batch": True}


def read_line(*overrides: str, gpus: int = 8, program: str = "verl.trainer.sft_trainer") -> ParsedConfig:
    line = f"torchrun --nproc_per_node={gpus} -m {program} model.path={QWEN} {' '.join(overrides)}"
    return read(from_line(line, None, {}), 1)


def doubts(parsed: ParsedConfig) -> dict[str, str]:
    return {note.key: note.text for note in parsed.notes if note.kind == "doubt"}


def test_the_defaults() -> None:
    parsed = read_line()
    assert (parsed.framework, parsed.model, parsed.rows) == ("verl", QWEN, "packed")
    assert parsed.job == DEFAULTS
    unset = {note.key for note in parsed.notes if note.kind == "default"}
    assert unset >= {"data.max_token_len_per_gpu", "data.max_length", "data.train_batch_size", "engine.model_dtype"}


def test_the_verdict_is_the_estimate_of_the_same_settings(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer model.path={QWEN}\n", encoding="utf-8")
    verdict = check_config(script, "h100")
    assert verdict.estimate.device_total_bytes == vramplan.estimate(QWEN, "h100", **DEFAULTS).device_total_bytes
    assert verdict.fits


@pytest.mark.parametrize(
    ("overrides", "update"),
    [
        (("data.max_token_len_per_gpu=16384",), {"sequence_length": 16384, "gradient_accumulation_steps": 2}),
        (("data.max_token_len_per_gpu=65536",), {"sequence_length": 32768, "gradient_accumulation_steps": 1}),
        (("data.max_token_len_per_gpu=512",), {"sequence_length": 512, "gradient_accumulation_steps": 32}),
        (("engine.pad_to_length=True", "data.max_token_len_per_gpu=8000"), {"gradient_accumulation_steps": 5}),
        (
            ("data.use_dynamic_bsz=False",),
            {
                "batches": "unpadded",
                "sequence_length": 1024,
                "micro_batch_size": 4,
                "gradient_accumulation_steps": 8,
                "verl": {},
            },
        ),
        (("engine.model_dtype=bf16",), {"dtype": "bf16", "autocast": "none"}),
        (("model.enable_gradient_checkpointing=False",), {"checkpointing": "none"}),
        (("engine.fsdp_size=4",), {"fsdp": {**DEFAULTS["fsdp"], "replicas": 2}}),  # type: ignore[dict-item]
        (("engine.fsdp_size=16",), {}),
        (("engine.reshard_after_forward=False",), {"fsdp": {**DEFAULTS["fsdp"], "reshard_after_forward": False}}),  # type: ignore[dict-item]
        (("engine=fsdp", "optim=fsdp", "model=hf_model", "optim.lr=1e-5"), {}),
        (("++data.train_batch_size=128",), {"gradient_accumulation_steps": 2, "verl": {"samples": 128}}),
        (("engine.param_offload=True",), {}),
        (("engine.strategy=fsdp2", "engine.forward_prefetch=True"), {"fsdp": {**FSDP2, "forward_prefetch": True}}),
        (("engine.strategy=fsdp2", "engine.offload_policy=True"), {"fsdp": FSDP2, "offload": "all"}),
    ],
)
def test_settings(overrides: tuple[str, ...], update: dict[str, Any]) -> None:
    assert {"verl": {}} | read_line(*overrides).job == DEFAULTS | update


def test_adapters_have_the_dtype_of_the_base() -> None:
    job = read_line("model.lora_rank=16", "model.target_modules=[q_proj,v_proj]", "engine.model_dtype=bf16").job
    lora = {"method": "lora", "lora_rank": 16, "lora_targets": ("q_proj", "v_proj"), "lora_dtype": "bf16"}
    assert job == DEFAULTS | lora | {"dtype": "bf16", "autocast": "none"}
    assert read_line("model.lora_rank=16", "model.target_modules=all-linear").job["lora_targets"] is None


def test_a_file(tmp_path: Path) -> None:
    text = f"""\
defaults:
  - engine@engine: fsdp
  - _self_
data:
  train_batch_size: 64
  max_length: 4096
  max_token_len_per_gpu: ${{data.max_length}}
model:
  path: {QWEN}
engine:
  fsdp_size: -1
trainer:
  total_epochs: 1
"""
    path = tmp_path / "warm_up.yaml"
    path.write_text(text, encoding="utf-8")
    job = read(from_path(path, None, {}), 4).job
    batch = {"sequence_length": 4096, "gradient_accumulation_steps": 16, "verl": {"samples": 64}}
    assert job == DEFAULTS | {"num_gpus": 4} | batch
    path.write_text(text.replace("engine: fsdp", "engine: veomni"), encoding="utf-8")
    with pytest.raises(UnsupportedError, match="engine=veomni is not modelled"):
        read(from_path(path, None, {}), 4)
    path.write_text("data:\n  max_token_len_per_gpu: 4096\n", encoding="utf-8")
    assert read(from_path(path, None, {}), 4).framework == "verl"


def test_a_configuration_that_a_command_names(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"data:\n  max_length: 2048\nmodel:\n  path: {QWEN}\n", encoding="utf-8")
    script = tmp_path / "train.sh"
    flags = "--config-path=. --config-name mine data.max_token_len_per_gpu=4096"
    script.write_text(f"torchrun --nproc_per_node=2 -m verl.trainer.sft_trainer {flags}\n", encoding="utf-8")
    assert read(from_path(script, None, {}), 1).job["gradient_accumulation_steps"] == 128 * 2048 // 4096


def test_rays_program_says_its_gpus() -> None:
    line = f"python3 -m verl.trainer.sft_trainer_ray model.path={QWEN} trainer.nnodes=2 trainer.n_gpus_per_node=8"
    assert read(from_line(line, None, {}), 1).job["num_gpus"] == 16


def test_overrides() -> None:
    words = ["++a.b=1", "+c=x", "~d", "e=['u','v']", "f={g:1}", "--config-path", "conf", "-cn=big"]
    loose, settings = hydra.split(words)
    assert not loose
    assert {name: value.value for name, value in settings.items()} == {
        "a.b": "1",
        "c": "x",
        "e": ["u", "v"],
        "f": "{g:1}",
        "config": "conf/big.yaml",
    }


# -- how full a micro-batch may be -------------------------------------------------------------------------------------


def divided(lengths: list[int], parts: int) -> list[int]:
    """Tokens of each part by the largest differencing method on work: two widest divisions are merged, crosswise."""
    waiting = []
    for number, length in enumerate(lengths):
        division = [(0, 0)] * (parts - 1) + [(LINEAR_WORK * length + length**2, length)]
        waiting.append((-division[-1][0], number, division))
    heapq.heapify(waiting)
    number = len(lengths)
    while len(waiting) > 1:
        (_, _, first), (_, _, second) = heapq.heappop(waiting), heapq.heappop(waiting)
        merged = sorted((a[0] + b[0], a[1] + b[1]) for a, b in zip(first, reversed(second), strict=True))
        number += 1
        heapq.heappush(waiting, (merged[0][0] - merged[-1][0], number, merged))
    return [tokens for _, tokens in waiting[0][2]]


@pytest.mark.parametrize(("budget", "longest"), [(2048, 512), (4096, 4096), (8192, 1024), (32768, 32768)])
def test_no_micro_batch_is_fuller(budget: int, longest: int) -> None:
    """Draws of short and of long samples."""
    draw = random.Random(budget)
    for number in range(60):
        least = longest if number % 3 == 0 else longest // 40
        lengths = [draw.randint(1, longest) if draw.random() < 0.4 else draw.randint(1, least) for _ in range(64)]
        assert max(divided(lengths, -(-sum(lengths) // budget))) <= most_tokens(budget, longest)


def test_a_micro_batch_may_be_fuller_than_the_budget() -> None:
    """17 samples of 600 tokens are 10 micro-batches by a budget of 1,024: two samples in seven of them."""
    assert sorted(divided([600] * 17, -(-17 * 600 // 1024))) == [600] * 3 + [1200] * 7
    assert most_tokens(1024, 600) >= 1200


def test_the_doubt_stands_beside_the_verdict() -> None:
    text = doubts(read_line("data.max_token_len_per_gpu=8192"))
    assert "up to 9,600 tokens" in text["data.max_token_len_per_gpu"]
    assert "expandable_segments:True" in text["micro-batches"]
    assert set(doubts(read_line("data.max_token_len_per_gpu=32768"))) == {"micro-batches"}
    assert not doubts(read_line("data.use_dynamic_bsz=False"))
    line = f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun --nproc_per_node=2 -m verl.trainer.sft_trainer \
model.path={QWEN}"
    assert set(doubts(read(from_line(line, None, {}), 1))) == {"data.max_token_len_per_gpu"}


def test_a_budget_below_the_longest_sample() -> None:
    warnings = [note.text for note in read_line("data.max_token_len_per_gpu=512").notes if note.kind == "warning"]
    assert warnings == ["512 is less than data.max_length 1,024: verl stops at the first sample that is longer than it"]


def test_unknown_overrides() -> None:
    with pytest.raises(ConfigError, match=r"data.max_tokens: verl stops at a key that it does not know"):
        read_line("data.max_tokens=5")


def test_changes_are_hydras() -> None:
    parsed = read_line("data.use_dynamic_bsz=False")
    assert parsed.say({"micro_batch_size": 2, "gradient_accumulation_steps": 16}) == [
        "data.micro_batch_size_per_gpu=2",
        "data.train_batch_size=256",
    ]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (("data.max_token_len_per_gpu=many",), ConfigError, "max_token_len_per_gpu: expected a whole number"),
        (("data.max_token_len_per_gpu=0",), ConfigError, "at least 1"),
        (("data.train_batch_size=4",), ConfigError, "fewer samples than 8 GPUs"),
        (("data.use_dynamic_bsz=False", "data.micro_batch_size_per_gpu=3"), ConfigError, "3 does not divide the 32"),
        (("engine.fsdp_size=3",), ConfigError, "3 does not divide 8 GPUs"),
        (("data.pad_mode=right",), ConfigError, "no_padding alone"),
        (("engine.fsdp_size=1",), UnsupportedError, "NO_SHARD"),
        (("engine.strategy=fsdp_turbo",), UnsupportedError, "modelled: fsdp, fsdp2"),
        (("engine.forward_prefetch=True",), UnsupportedError, "forward_prefetch: True is not modelled with fsdp yet"),
        (("engine=megatron",), UnsupportedError, "engine=megatron"),
        (("engine.ulysses_sequence_parallel_size=3",), ConfigError, "3 does not divide 8 GPUs"),
        (("model.use_remove_padding=False",), UnsupportedError, "pads rows"),
        (("model.use_fused_kernels=True",), UnsupportedError, "use_fused_kernels"),
        (("engine.model_dtype=fp16",), UnsupportedError, "modelled: fp32, bf16"),
        (("optim.optimizer_impl=bitsandbytes.optim",), UnsupportedError, "torch.optim"),
        (("+optim.override_optimizer_config.fused=True",), UnsupportedError, "override_optimizer_config.fused"),
        (("+model.override_config.attn_implementation=sdpa",), UnsupportedError, "flash_attention_2"),
        (("model.lora_adapter_path=run1",), UnsupportedError, "lora_adapter_path"),
    ],
)
def test_refused(overrides: tuple[str, ...], error: type[VramplanError], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        read_line(*overrides)
    if error is UnsupportedError:
        assert f"vramplan estimate {QWEN} --gpu GPU --method full" in raised.value.text
        assert "--num-gpus 8 --strategy fsdp" in raised.value.text


def test_one_gpu_and_other_versions() -> None:
    with pytest.raises(UnsupportedError, match="one GPU"):
        read_line(gpus=1)
    line = f"torchrun --nproc_per_node=2 -m verl.trainer.sft_trainer model.path={QWEN}"
    with pytest.raises(UnsupportedError, match=r"differs before 0\.9\.0"):
        read(from_line(line, None, {}), 1, "0.8.0")
    with pytest.raises(UnsupportedError, match=r"before 0\.8"):
        read_line("model.partial_pretrain=x", program="verl.trainer.fsdp_sft_trainer")
    with pytest.raises(UnsupportedError, match="has images"):
        read_line("model.path=Qwen/Qwen2.5-VL-3B-Instruct")


def test_0_9_0_keeps_gradients_whole_and_copies_logits() -> None:
    """From 0.9.1 on gradients are reduced after every micro-batch, and a temperature of 1 divides no logits."""
    line = f"torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer model.path={QWEN}"
    before = read(from_line(line, None, {}), 1, "0.9.0").job
    assert "sync_each_batch" not in before["fsdp"]
    assert before["verl"] == {"logits": "copied", "samples": 256}
    assert "logits" not in read_line().job["verl"]
    kept = read_line("engine.use_no_sync_for_gradient_accumulation=True").job
    assert kept["fsdp"]["sync_each_batch"] is False
    now = read_line().job
    copied, undivided = (vramplan.estimate(QWEN, "h100", **job) for job in ({**now, "verl": before["verl"]}, now))
    logits = 8192 * 151_936 * 2
    assert copied.phases["forward"] - undivided.phases["forward"] == pytest.approx(logits, rel=0.01)


def test_the_model_has_to_be_named() -> None:
    line = "torchrun --nproc_per_node=2 -m verl.trainer.sft_trainer data.max_token_len_per_gpu=8192"
    with pytest.raises(ConfigError, match="names no model"):
        check_config(line.split(), "h100")
