"""Lengths that a user gives `check`, beside those that a configuration limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vramplan import check
from vramplan.errors import VramplanError

GRPO = (
    "trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --max_prompt_length 512 --max_completion_length 384"
    " --num_generations 4 --per_device_train_batch_size 4 --bf16 --use_vllm --vllm_mode server\n"
)
VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B"
    " data.train_batch_size=64 data.max_prompt_length=512 data.max_response_length=512"
    " actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"
    " actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.rollout.name=vllm"
    " actor_rollout_ref.model.use_remove_padding=True trainer.n_gpus_per_node=2 trainer.nnodes=1\n"
)


def script(folder: Path, text: str) -> Path:
    path = folder / "train.sh"
    path.write_text(text)
    return path


def test_a_data_set_shortens_the_prompt_once(tmp_path: Path) -> None:
    """Also where the number of GPUs is open, and the job is estimated for several."""
    rows = tmp_path / "data.jsonl"
    rows.write_text(json.dumps({"prompt": "q" * 300}) + "\n")
    for num_gpus in (None, 1):
        job = check(script(tmp_path, GRPO), gpu="a100-80gb", num_gpus=num_gpus, dataset=rows).estimate.job
        assert job.sequence_length - (job.prompt_length or 0) == 384
        assert job.prompt_length == 111


def test_a_shorter_sample_has_a_shorter_prompt(tmp_path: Path) -> None:
    path = script(tmp_path, GRPO)
    job = check(path, gpu="a100-80gb", num_gpus=1, sequence_length=600, look_further=False).estimate.job
    assert (job.sequence_length, job.prompt_length) == (600, 216)
    with pytest.raises(VramplanError, match="a completion alone has up to 384 tokens"):
        check(path, gpu="a100-80gb", num_gpus=1, sequence_length=384)


def test_batches_that_are_made_of_lengths_keep_them(tmp_path: Path) -> None:
    with pytest.raises(VramplanError, match=r"data\.max_prompt_length=N"):
        check(script(tmp_path, VERL), gpu="h100", sequence_length=600)


def test_little_of_a_share_is_left(tmp_path: Path) -> None:
    shared = GRPO.replace("server", "colocate") + " --vllm_gpu_memory_utilization {}"
    for share, is_little in ((0.02, True), (0.3, False)):
        found = check(script(tmp_path, shared.replace("\n", "").format(share)), gpu="a100-80gb", num_gpus=1)
        assert any("vLLM may not start" in note for note in found.estimate.notes) == is_little
