"""PPO of LLaMA-Factory and TRL: what is refused, and the nearest estimate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import cli
from vramplan import check
from vramplan.errors import VramplanError

RECIPE = """model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
stage: ppo
template: qwen
finetuning_type: lora
cutoff_len: 512
max_new_tokens: 128
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
"""


@pytest.mark.parametrize(
    ("rewards", "flag"),
    [
        ("reward_model: out/rm\n", ""),
        ("reward_model: Qwen/Qwen3-0.6B\nreward_model_type: full\n", "--reward-model Qwen/Qwen3-0.6B"),
        ("reward_model: http://localhost:8000\nreward_model_type: api\n", ""),
    ],
)
def test_llamafactory_names_the_nearest_estimate(tmp_path: Path, rewards: str, flag: str) -> None:
    path = tmp_path / "ppo.yaml"
    path.write_text(RECIPE + rewards)
    with pytest.raises(VramplanError) as caught:
        check(path, "rtx4090")
    said = str(caught.value)
    assert "value head" in said
    assert flag in said
    assert ("--reward-model" in said) == bool(flag)
    answer = cli("estimate", *said.partition("vramplan estimate ")[2].split(), "--json")
    assert answer.returncode == 0, answer.stderr


def test_trl_names_the_nearest_estimate(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("from trl import PPOTrainer\n\nPPOTrainer(model=None).train()\n")
    with pytest.raises(VramplanError, match="--task grpo --reference model --loss standard --reward-model MODEL"):
        check(path, "rtx4090")
    done = cli("check", "--gpu", "rtx4090", "--", "trl", "ppo", "--model_name_or_path", "EleutherAI/pythia-1b")
    assert done.returncode == 2
    assert "without the value model" in done.stderr
