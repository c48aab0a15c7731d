"""Samples at a configuration's limit do not fit, shorter ones do: the answer says so beside its verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import cli
from vramplan import check

SFT = (
    "swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora --dataset a.jsonl --max_length 8192"
    " --per_device_train_batch_size 4 --torch_dtype bfloat16 --attn_impl flash_attn {}\n"
)


def script(folder: Path, more: str = "") -> Path:
    path = folder / "train.sh"
    path.write_text(SFT.format(more))
    return path


def test_a_limit_that_does_not_fit_comes_with_a_length_that_does(tmp_path: Path) -> None:
    path = script(tmp_path)
    found = check(path, gpu="4090")
    assert not found.fits
    assert found.shorter_length is not None
    assert check(path, gpu="4090", sequence_length=found.shorter_length).fits
    assert not check(path, gpu="4090", sequence_length=2 * found.shorter_length).fits
    answer = cli("check", str(path), "--gpu", "4090")
    assert answer.returncode == 1
    text = " ".join(answer.stdout.replace("│", " ").split())
    assert f"8,192 tokens, the limit, are counted; of {found.shorter_length:,} fit" in text
    data = json.loads(cli("check", str(path), "--gpu", "4090", "--json").stdout)
    assert data["shorter_length"] == found.shorter_length


@pytest.mark.parametrize("more", ["--packing true", "--padding_free true"])
def test_packed_rows_are_full_and_joined_samples_are_not(tmp_path: Path, more: str) -> None:
    found = check(script(tmp_path, more), gpu="4090")
    assert not found.fits
    assert (found.shorter_length is None) == ("packing" in more)


def test_a_length_that_the_user_gives_is_no_limit(tmp_path: Path) -> None:
    assert check(script(tmp_path), gpu="4090", sequence_length=8192).shorter_length is None


def test_prompts_are_shorter_in_front_of_completions_of_the_same_length(tmp_path: Path) -> None:
    path = tmp_path / "grpo.sh"
    path.write_text(
        "swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-3B-Instruct --tuner_type lora --dataset a.jsonl --beta 0"
        " --max_length 16384 --max_completion_length 512 --num_generations 4 --per_device_train_batch_size 4"
        " --reward_funcs accuracy --torch_dtype bfloat16 --attn_impl flash_attn\n"
    )
    found = check(path, gpu="4090")
    assert not found.fits
    assert found.shorter_length is not None
    assert found.shorter_length > 512
    text = " ".join(cli("check", str(path), "--gpu", "4090").stdout.replace("│", " ").split())
    assert f"Prompts of 16,384 tokens, the limit, are counted; of {found.shorter_length - 512:,} fit" in text
