"""The changes that `check` names: enough together, all in the framework's words, and those that `--fix` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramplan.planner import check, fix
from vramplan.planner.named_changes import named_changes
from vramplan.render.changes import writes
from vramplan.render.ways_out import ways_out

CONFIGS = Path(__file__).parent / "configs"
SCRIPT = """\
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig("out", bf16=False, gradient_checkpointing=False, per_device_train_batch_size=4, max_length=2048)
data = load_dataset("trl-lib/Capybara", split="train")
SFTTrainer(model="Qwen/Qwen2.5-7B", args=args, train_dataset=data).train()
"""
YAML = """\
model_name_or_path: Qwen/Qwen2.5-7B
stage: sft
finetuning_type: full
dataset: identity
template: qwen
cutoff_len: 4096
output_dir: out
per_device_train_batch_size: 8
gradient_accumulation_steps: 2
disable_gradient_checkpointing: true
"""


def test_a_script_in_fp32_is_told_the_changes_that_are_enough_together(tmp_path: Path) -> None:
    """Neither bf16, checkpointing, adapters nor two of them are enough; the three together are, and fit when read."""
    path = tmp_path / "sft.py"
    path.write_text(SCRIPT)
    verdict = check.check(path, "rtx4090", num_gpus=1)
    change = verdict.nearest_change
    assert change is not None
    assert {"checkpointing", "dtype", "method"} <= change.update.keys()
    words = "  ".join(word for _, settings in ways_out(verdict) for word in settings)
    assert "torch.bfloat16" in words
    assert "LoraConfig" in words
    job = {"dtype": "bf16", "autocast": "bf16", "checkpointing": "full", "method": "lora"}
    assert job.items() <= {**change.update}.items()
    changed = (
        SCRIPT.replace("bf16=False, gradient_checkpointing=False", 'bf16=True, model_init_kwargs={"dtype": "bfloat16"}')
        .replace("args=args", 'args=args, peft_config=LoraConfig(target_modules="all-linear")')
        .replace("batch_size=4", f"batch_size={change.micro_batch_size}")
        .replace("from trl", "from peft import LoraConfig\nfrom trl")
    )
    path.write_text(changed)
    again = check.check(path, "rtx4090", num_gpus=1)
    assert again.fits
    assert again.need_bytes == pytest.approx(change.device_total_bytes, rel=0.01)


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("alignment-handbook/full.yaml", "rtx4090"),
        ("llamafactory/zero3.yaml", "rtx4090"),
        ("axolotl/simpo.yaml", "rtx4080"),
    ],
)
def test_fix_writes_what_check_names(name: str, gpu: str) -> None:
    verdict, fixed = check.check(CONFIGS / name, gpu, num_gpus=1), fix.fix(CONFIGS / name, gpu, num_gpus=1)
    words = {word for _, settings in ways_out(verdict) for word in settings}
    assert words == {f"{change.key}: {change.after}" for change in fixed.changes}
    assert fixed.after.fits
    assert "writes" in writes(verdict)[0].plain
    change = verdict.nearest_change
    assert change is not None
    assert fixed.after.estimate.device_total_bytes == change.device_total_bytes


@pytest.mark.full
def test_parts_that_a_framework_cannot_say_are_in_no_combination() -> None:
    """verl 0.5 has no setting for an 8-bit optimizer: bf16 alone was named, with the memory of both."""
    verdict = check.check(CONFIGS / "verl" / "grpo.sh", "rtx4090", num_gpus=1)
    config = verdict.reading
    assert not config.words({"optimizer": "adamw_8bit"})
    assert all("optimizer" not in change.update for change in verdict.advice)


@pytest.mark.full
def test_a_variable_of_the_environment_stands_beside_the_settings() -> None:
    verdict = check.check(CONFIGS / "llamafactory" / "dpo_zero3.yaml", "rtx4090", num_gpus=1)
    for change in verdict.advice:
        if "expandable_segments" in change.update and len(change.update) > 1:
            assert len(change.settings) > 1, change


@pytest.mark.full
def test_no_fix_is_named_without_a_change(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(YAML.replace("7B", "72B"))
    verdict = check.check(path, "rtx3060", num_gpus=1)
    assert verdict.nearest_change is None
    assert named_changes(verdict) == ()
    assert writes(verdict) == []
    assert not fix.fix(path, "rtx3060", num_gpus=1).changes


@pytest.mark.full
def test_a_change_that_its_framework_takes_otherwise_is_not_enough() -> None:
    """InternVL's script has no fused loss: its switch for Liger leaves whole logits."""
    verdict = check.check(CONFIGS / "internvl" / "full.sh", "rtx4090", num_gpus=1)
    (together,) = [effect for effect in verdict.advice if "strategy" in effect.update and "loss" in effect.update]
    assert not together.fits
    assert together.device_total_bytes > 2 * verdict.estimate.capacity_bytes
