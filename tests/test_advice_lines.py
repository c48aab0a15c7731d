"""Changes that `check` proposes: the settings that change alone, and where they stand in a script."""

from __future__ import annotations

from pathlib import Path

import pytest

import vramplan
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers.trl_grpo import NAMES
from vramplan.frameworks.settings import ConfigValue
from vramplan.render.check import ways_out

SCRIPT = """from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

args = GRPOConfig(
    output_dir="out",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    num_generations=8,
    max_completion_length=1024,
    use_vllm=True,
    vllm_gpu_memory_utilization=0.4,
    bf16=True,
    gradient_checkpointing=True,
)
trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-3B-Instruct",
    reward_funcs=lambda completions, **_: [0.0] * len(completions),
    args=args,
    train_dataset=load_dataset("trl-lib/DeepMath-103K", split="train"),
    peft_config=LoraConfig(r=16, target_modules=["q_proj", "v_proj"]),
)
trainer.train()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "grpo.py"
    path.write_text(SCRIPT)
    return path


def test_a_change_repeats_no_setting_that_stays(script: Path) -> None:
    verdict = vramplan.check(script, "rtx4090", num_gpus=1)
    (_, settings), *_ = ways_out(verdict)
    assert settings[:2] == ['vllm_mode="colocate"', "vllm_enable_sleep_mode=True"]  # use_vllm=True stands there


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        ({}, ["use_vllm: true", "vllm_mode: colocate", "vllm_enable_sleep_mode: true"]),
        ({"use_vllm": True, "vllm_mode": "colocate"}, ["vllm_enable_sleep_mode: true"]),
        ({"use_vllm": "True", "vllm_mode": "server"}, ["vllm_mode: colocate", "vllm_enable_sleep_mode: true"]),
        (
            {"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True},  # another key undoes it
            ["use_vllm: true", "vllm_mode: colocate", "vllm_enable_sleep_mode: true"],
        ),
    ],
)
def test_settings_that_stand_there_are_left_out(written: dict[str, object], lines: list[str]) -> None:
    settings = {key: ConfigValue(value, "") for key, value in written.items()}
    config = ParsedConfig("trl", "1.16.0", "", {}, NAMES, settings=settings)
    assert config.say({"generate_with": "vllm_sleep"}) == lines
