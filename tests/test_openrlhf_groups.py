"""OpenRLHF's reinforcement training on several groups of GPUs: each is planned, and the worst decides."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from tests.helpers import cli
from tests.openrlhf_scored_runs import recorded
from tests.recorded_runs import errors_of
from tests.trl_runs import GPU
from vramplan import check
from vramplan.errors import VramplanError
from vramplan.frameworks.detect import from_line
from vramplan.planner.read_config import read
from vramplan.planner.verdict import Verdict
from vramplan.render.check_words import outcome_of_check, words_of_check
from vramplan.units import GiB

RECORDED = recorded()
WORST = 0.001
MODEL = "--actor.model_name_or_path Qwen/Qwen2.5-3B --actor.gradient_checkpointing_enable"
COUNTS = "--actor.num_gpus_per_node 4 --ref.num_gpus_per_node 4 --critic.num_gpus_per_node 2 --vllm.num_engines 2"
REMOTE = "--reward.remote_url http://localhost:5000"
REWARDED = "--reward.model_name_or_path Qwen/Qwen2.5-1.5B --reward.num_gpus_per_node 2"


def command(words: str) -> list[str]:
    return shlex.split(f"python3 -m openrlhf.cli.train_ppo_ray {MODEL} {COUNTS} {words}")


def verdict_of(words: str, gpu: str = "h100") -> Verdict:
    return check(command(words), gpu)


def groups_of(words: str) -> dict[str, Any]:
    config = read(from_line(shlex.join(command(words)), None, {}), 8)
    return {group.name: group for group in config.groups}


@pytest.mark.parametrize("row", RECORDED[1:5:3], ids=lambda row: f"{row['model']} {[*row['peaks']][-1]}")
def test_what_scores_alone_agrees_with_its_code(row: dict[str, Any]) -> None:
    assert {*row["peaks"]} == {"loaded", "scoring" if "reference" in row["job"] else "reward"}
    assert max(errors_of(row, GPU).values()) <= WORST


@pytest.mark.full
def test_all_that_scores_alone_agrees_with_its_code() -> None:
    assert len(RECORDED) >= 11
    assert max(max(errors_of(row, GPU).values()) for row in RECORDED) <= WORST


def test_each_group_is_planned() -> None:
    verdict = verdict_of(f"{REMOTE} --rollout.micro_batch_size 4")
    needs = {group.name: (group.num_gpus, group.fits) for group in verdict.groups}
    assert needs == {
        "the actor": (4, True), "the reference": (4, True), "the critic": (2, True), "vLLM": (2, True),
    }  # fmt: skip
    assert verdict.fits
    actor, reference, critic, engines = (group.need_bytes or 0 for group in verdict.groups)
    logits = 4 * 2048 * 151_936 * 6  # bf16, and fp32
    assert 2 * 3_085_938_688 + logits < reference < 2 * 3_085_938_688 + logits + 4 * GiB
    assert critic > actor - 4 * GiB, "an optimizer on half as many GPUs, and no logits"
    assert engines == pytest.approx(0.95 * verdict.card.cuda_total_bytes, rel=1e-6)
    assert not any(note.kind == "doubt" for note in verdict.reading.notes)


@pytest.mark.full
def test_the_worst_group_decides() -> None:
    verdict = verdict_of(f"{REMOTE} --critic.model_name_or_path Qwen/Qwen2.5-32B")
    assert [group.fits for group in verdict.groups] == [True, True, False, True]
    assert outcome_of_check(verdict) == "does not fit"
    assert verdict.reading.task == "PPO, the critic's GPUs"
    assert verdict.estimate.model == "Qwen/Qwen2.5-32B"


def test_engines_that_do_not_start() -> None:
    verdict = verdict_of(f"{REMOTE} --vllm.gpu_memory_utilization 0.07")
    assert [group.fits for group in verdict.groups] == [True, True, True, False]
    assert outcome_of_check(verdict) == "does not fit"
    assert "of weights" in verdict.groups[-1].text
    tight = verdict_of(f"{REMOTE} --vllm.gpu_memory_utilization 0.08")
    assert tight.groups[-1].fits is None


def test_a_group_that_is_not_known_is_no_fit() -> None:
    words = command("--reward.model_name_or_path ./my-rewards --algo.advantage.estimator reinforce")
    verdict = check(words, "h100")
    assert (verdict.case_fits, verdict.fits, outcome_of_check(verdict)) == (True, False, "depends")
    assert words_of_check(verdict) == "FITS ON 3 OF 4 GROUPS OF GPUs"
    shown = cli("check", "--gpu", "h100", "--", *words)
    assert shown.returncode == 1
    assert "Not known: reward.num_gpus_per_node" in shown.stdout
    assert "✓" not in shown.stdout
    answer = json.loads(cli("check", "--json", "--gpu", "h100", "--", *words).stdout)
    groups = {group["name"]: group["fits"] for group in answer["groups"]}
    assert groups == {"the actor": True, "the reference": True, "the reward model": None, "vLLM": True}


def test_nothing_is_fixed_for_a_group_that_is_not_known(tmp_path: Any) -> None:
    path = tmp_path / "train.sh"
    path.write_text(shlex.join(command("--reward.model_name_or_path ./mine --algo.advantage.estimator reinforce")))
    done = cli("check", str(path), "--gpu", "h100", "--fix")
    assert done.returncode == 2
    assert "nothing is known that would help the reward model (reward.num_gpus_per_node)" in done.stderr


def test_a_reference_that_waits_on_the_host_is_not_planned() -> None:
    assert groups_of(f"{REMOTE} --ref.offload --ds.zero_stage 3")["the reference"].unknown
    assert groups_of(f"{REMOTE} --ref.offload")["the reference"].reading, "DeepSpeed offloads at stage 3 alone"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (REMOTE, ["the reference", "the critic", "vLLM"]),
        (REWARDED, ["the reference", "the critic", "the reward model", "vLLM"]),
        (f"{REWARDED} --train.colocate_critic_reward", ["the reference", "the critic", "vLLM"]),
        (f"{REMOTE} --train.colocate_actor_ref", ["the critic", "vLLM"]),
        (f"{REMOTE} --algo.kl.init_coef 0 --algo.advantage.estimator rloo --rollout.n_samples_per_prompt 4", ["vLLM"]),
        (f"{REMOTE} --train.colocate_all --critic.num_gpus_per_node 4 --vllm.num_engines 4", []),
        (f"{REMOTE} --train.colocate_all --critic.num_gpus_per_node 4 --train.async_enable", ["vLLM"]),
    ],
)
def test_what_is_on_gpus_of_its_own(words: str, names: list[str]) -> None:
    assert [*groups_of(words)] == names


def test_jobs_of_the_groups() -> None:
    found = groups_of(f"{REWARDED} --train.colocate_critic_reward --ds.lora.rank 8 --ds.use_liger_kernel")
    critic, reference = found["the critic"].reading, found["the reference"].reading
    assert (critic.model, critic.job["num_gpus"], critic.job["gradient_accumulation_steps"]) == (
        "Qwen/Qwen2.5-1.5B", 2, 64,
    )  # fmt: skip
    assert critic.job["openrlhf"] == {"trains": "critic", "processes": 1, "scored_samples": 1}
    assert (critic.job["reward_model"], critic.job["method"]) == ("Qwen/Qwen2.5-1.5B", "lora")
    assert "fused_kernels" not in critic.job, "Liger is for the policy and its reference"
    assert (reference.job["method"], reference.job["reference"]) == ("full", "model")
    assert reference.job["fused_kernels"]


def test_gradients_in_the_dtype_of_the_weights_are_no_setting_of_their_own() -> None:
    """DeepSpeed adds them up in it by itself (runtime/engine.py: get_data_types)."""
    alone, named = (groups_of(f"{REMOTE}{more}") for more in ("", " --ds.grad_accum_dtype bf16"))
    assert alone["the critic"].reading.job == named["the critic"].reading.job


def test_groups_that_openrlhf_stops_at() -> None:
    with pytest.raises(VramplanError, match="2 GPUs of the critic and 8 of the reward model"):
        groups_of("--reward.model_name_or_path Qwen/Qwen2.5-1.5B --train.colocate_critic_reward")


def test_the_fullest_of_groups_that_fit_is_in_the_headline() -> None:
    """The critic has one GPU for a model that the actor shares between four."""
    flags = {"ref": 2, "reward": 2, "critic": 1, "actor": 4}
    words = [
        *("python", "-m", "openrlhf.cli.train_ppo_ray", "--pretrain", "Qwen/Qwen2.5-7B-Instruct"),
        *(word for name, count in flags.items() for word in (f"--{name}_num_gpus_per_node", str(count))),
        *(
            "--reward_pretrain",
            "Qwen/Qwen2.5-7B-Instruct",
            "--micro_train_batch_size",
            "1",
            "--micro_rollout_batch_size",
            "2",
        ),
        *("--train_batch_size", "128", "--prompt_max_len", "1024", "--generate_max_len", "1024"),
        *("--vllm_num_engines", "2", "--vllm_tensor_parallel_size", "2"),
        *("--zero_stage", "3", "--bf16", "--adam_offload", "--gradient_checkpointing", "--packing_samples"),
    ]
    verdict = check(words, "a100-80gb")
    assert verdict.fits
    needs = {group.name: group.need_bytes or 0 for group in verdict.groups}
    assert verdict.need_bytes == needs["the critic"] == max(need for name, need in needs.items() if name != "vLLM")
    assert needs["the critic"] > needs["the actor"]
    shown = cli("check", "--gpu", "a100-80gb", "--", *words).stdout
    (title,) = (line for line in shown.splitlines() if line.startswith("╭"))
    assert "the critic's GPUs" in title
    assert "its share" in shown
