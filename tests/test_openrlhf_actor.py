"""OpenRLHF's actor and critic: on the tape against runs of its code, and what `check` reads of ``train_ppo_ray``."""

from __future__ import annotations

import shlex
from statistics import median
from typing import Any

import pytest

from tests.openrlhf_actor_runs import recorded
from tests.recorded_runs import estimated_peaks
from tests.trl_runs import GPU
from vramplan import check, estimate
from vramplan.errors import HubError, VramplanError
from vramplan.frameworks.detect import from_line
from vramplan.inputs.sharding import DEEPSPEED_SIZES
from vramplan.memory.vllm import ASLEEP_BYTES
from vramplan.planner.read_config import read

RECORDED = recorded()
WORST, MEDIAN = 0.0005, 0.00001
MODEL, WEIGHTS = "qwen2.5-3b", 3_085_938_688
STEP: dict[str, Any] = {
    "task": "grpo", "loss": "kept_log_probs", "loop": "plain", "method": "full", "dtype": "bf16", "autocast": "none",
    "optimizer": "adamw_torch_fused", "attention": "flash", "batches": "unpadded", "strategy": "zero3", "num_gpus": 8,
    "sequence_length": 1024, "micro_batch_size": 4, "gradient_accumulation_steps": 4, "reference": "model",
    "generate_with": "vllm_sleep", "vllm_share": 0.4, "zero": {**DEEPSPEED_SIZES, "overlap_comm": True},
}  # fmt: skip


def step(**changes: Any) -> Any:
    return estimate(MODEL, "h100", **{**STEP, **changes})


def errors_of(row: dict[str, Any]) -> dict[str, float]:
    """The relative error of each phase's peak; what goes to vLLM is no part of the runs."""
    peaks = estimated_peaks(row, GPU)
    return {phase: abs(peaks[phase] / size - 1) for phase, size in row["peaks"].items()}


@pytest.mark.parametrize("row", RECORDED[::15], ids=lambda row: f"{row['model']} {row['job'].get('method', 'lora')}")
def test_peaks_agree_with_its_code(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that is not sharded, which OpenRLHF itself does not train."""
    monkeypatch.setattr("vramplan.analytic.prepare.check_job", lambda *_: None)
    assert {*row["peaks"]} == {"loaded", "scoring", "forward", "backward", "optimizer"}
    assert max(errors_of(row).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramplan.analytic.prepare.check_job", lambda *_: None)
    assert len(RECORDED) >= 40
    errors = [errors_of(row) for row in RECORDED]
    assert max(max(each.values()) for each in errors) <= WORST
    assert median(error for each in errors for error in each.values()) <= MEDIAN


@pytest.mark.full
def test_logits_live_until_the_optimizer_step_is_over() -> None:
    """The model's output has a name in training_step, which calls the optimizer's."""
    few, many = (step(micro_batch_size=rows).phases["optimizer"] for rows in (1, 4))
    assert many - few == pytest.approx(3 * 1024 * 151_936 * 4, rel=0.01)


def test_states_that_sleep_leave_room_for_vllm() -> None:
    """An eighth of fp32 weights and of two states, bf16 gradients of it, and the reduce bucket; weights stay."""
    here, away = (step(openrlhf={"sleeps": sleeps}) for sleeps in (False, True))
    own = WEIGHTS / 8
    bucket = 2 * DEEPSPEED_SIZES["reduce_bucket_size"]
    assert here.phases["generation"] - away.phases["generation"] == pytest.approx(14 * own + bucket, rel=0.02)
    assert here.phases["backward"] == pytest.approx(away.phases["backward"], rel=0.001), "all of it is back"


@pytest.mark.full
def test_below_stage_3_nothing_but_states_leaves() -> None:
    here, away = (step(strategy="zero2", openrlhf={"sleeps": sleeps}) for sleeps in (False, True))
    assert here.phases["generation"] - away.phases["generation"] == pytest.approx(12 * WEIGHTS / 8, rel=0.02)


@pytest.mark.full
def test_one_weight_at_a_time_is_sent() -> None:
    """vLLM elsewhere gets it from where it was gathered; on the same GPU its weights are awake, and get a copy."""
    embedding = 151_936 * 2048 * 2
    apart = step(generate_with="vllm_server", vllm_share=0.3)
    waits = apart.phases["generation"]
    asleep = step(generate_with="vllm_server", vllm_share=0.3, openrlhf={"sleeps": True}).phases["generation"]
    assert asleep == pytest.approx(2 * 2 * WEIGHTS / 8 + embedding, rel=0.05), "the actor's and the reference's part"
    beside = step(vllm_share=0.11, vllm_max_length=1024)
    assert beside.phases["generation"] >= waits + 2 * WEIGHTS + embedding + ASLEEP_BYTES


def test_each_other_process_has_a_context() -> None:
    alone, three = (step(openrlhf={"processes": count}) for count in (0, 3))
    terms = {term.label: term.num_bytes for term in three.terms}
    context = terms["CUDA context and kernels"] + terms["NCCL buffers"]
    assert three.device_total_bytes - alone.device_total_bytes == 3 * context == terms["other processes with a model"]


@pytest.mark.full
def test_more_samples_are_scored_than_trained_on() -> None:
    few, many = (step(openrlhf={"scored_samples": count}).phases["scoring"] for count in (4, 32))
    assert many - few > 28 * 1024 * 151_936 * 4


def test_a_critic_has_no_logits() -> None:
    alone = {"generate_with": "vllm_server", "vllm_share": 0.3, "reference": None}
    actor, critic = (step(openrlhf={"trains": model}, **alone).phases["backward"] for model in ("actor", "critic"))
    assert actor - critic > 1.9 * 4 * 1024 * 151_936 * 4


@pytest.mark.full
def test_a_critic_takes_turns_with_the_actor_or_trains_beside_it() -> None:
    """Asleep it leaves its weights, an eighth of them; else states and gradients too, and both update at once."""
    without, asleep = (step(openrlhf={"sleeps": True, "critic": critic}) for critic in (None, MODEL))
    eighth = WEIGHTS / 8  # the head is the embedding
    for phase in ("generation", "backward"):
        assert asleep.phases[phase] - without.phases[phase] == pytest.approx(2 * eighth, rel=0.1)
    beside = step(openrlhf={"critic": MODEL})
    alone = step(openrlhf={"trains": "critic"}, generate_with="vllm_server", vllm_share=0.3, reference=None)
    context = sum(term.num_bytes for term in alone.terms if term.category == "context")
    more = beside.phases["backward"] - step().phases["backward"]
    assert more == pytest.approx(alone.device_total_bytes - context, rel=0.001), "what its process reserves"
    assert asleep.phases["critic"] > alone.phases["backward"]


@pytest.mark.full
def test_a_reward_model_is_shared_as_the_reference_is() -> None:
    without, scored = (step(reward_model=name) for name in (None, MODEL))
    assert scored.phases["backward"] - without.phases["backward"] == pytest.approx(2 * WEIGHTS / 8, rel=0.02)
    whole = step(reward_model=MODEL, strategy="zero2").phases["loaded"]
    assert whole - step(strategy="zero2").phases["loaded"] == pytest.approx(2 * WEIGHTS, rel=0.02)
    assert "reward" in scored.phases


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"openrlhf": {"trains": "critic"}}, "beside a critic alone"),
        ({"strategy": "ddp", "num_gpus": 1}, "OpenRLHF runs DeepSpeed"),
        ({"expandable_segments": True}, "vLLM's sleep mode does not run"),
        ({"generate_with": "transformers", "vllm_share": 0.3}, "OpenRLHF generates by vLLM"),
        ({"reference": "adapters_off", "method": "lora"}, "a model of its own"),
        ({"loss": "chunked", "loop": "trainer", "batches": "padded", "prompt_length": 64,
          "openrlhf": {"sleeps": True}}, "openrlhf has no meaning without"),
    ],
)  # fmt: skip
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError) as caught:
        step(**changes)
    assert said in str(caught.value)


NEW = (
    "--actor.model_name_or_path Qwen/Qwen2.5-3B --actor.num_gpus_per_node 4 --ref.num_gpus_per_node 4"
    " --vllm.num_engines 4 --reward.remote_url http://localhost:5000 --algo.advantage.estimator group_norm"
    " --rollout.n_samples_per_prompt 8"
)
OLD = (
    "--pretrain Qwen/Qwen2.5-3B --bf16 --flash_attn --actor_num_gpus_per_node 4 --ref_num_gpus_per_node 4"
    " --vllm_num_engines 4 --remote_rm_url http://localhost:5000 --advantage_estimator reinforce"
)
SHARED = "--train.colocate_all --vllm.gpu_memory_utilization 0.5"


def parsed(words: str) -> Any:
    return read(from_line(f"python3 -m openrlhf.cli.train_ppo_ray {words}", None, {}), 8)


def test_the_defaults() -> None:
    found = parsed(NEW)
    job = found.job
    assert (job["num_gpus"], job["micro_batch_size"], job["gradient_accumulation_steps"]) == (4, 1, 32)
    assert (job["sequence_length"], job["batches"], job["strategy"]) == (2048, "padded", "zero2")
    assert (job["generate_with"], job["checkpointing"], job["attention"]) == ("vllm_server", "none", "flash")
    assert job["openrlhf"] == {
        "divides_logits": False, "entropy_loss": False, "kl_loss": False, "sleeps": False, "processes": 0,
        "scored_samples": 1,
    }  # fmt: skip
    assert "reference" not in job
    assert found.task == "GRPO, the actor's GPUs"
    assert [group.name for group in found.groups] == ["the reference", "vLLM"]


def test_flags_without_dots_have_other_defaults() -> None:
    job = parsed(f"{OLD} --generate_max_len 3072").job
    assert (job["sequence_length"], job["micro_batch_size"], job["openrlhf"]["scored_samples"]) == (4096, 4, 8)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (SHARED, {"generate_with": "vllm", "vllm_share": 0.5, "vllm_max_length": 2048, "reference": "model"}),
        (f"{SHARED} --vllm.enable_sleep", {"generate_with": "vllm_sleep"}),
        (f"{SHARED} --train.async_enable", {"generate_with": "vllm_server", "reference": "model"}),
        ("--train.colocate_actor_ref", {"generate_with": "vllm_server", "reference": "model"}),
        ("--train.colocate_actor_ref --ref.offload --ds.zero_stage 3", {"reference": None}),
        ("--train.colocate_actor_ref --ref.offload", {"reference": "model"}),  # DeepSpeed does so at stage 3 alone
        ("--ds.packing_samples --train.micro_batch_size 4", {"batches": "unpadded", "gradient_accumulation_steps": 8}),
        ("--ds.adam_offload --ds.zero_stage 3", {"offload": "optimizer", "strategy": "zero3"}),
        ("--actor.gradient_checkpointing_enable", {"checkpointing": "full", "reentrant": False}),
        (
            "--train.dynamic_batch_enable --train.max_tokens_per_gpu 8192",
            {"batches": "packed", "sequence_length": 8192, "gradient_accumulation_steps": 8},
        ),
    ],
)
def test_settings(words: str, expected: dict[str, Any]) -> None:
    job = parsed(f"{NEW} {words}").job
    assert {name: job.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--rollout.temperature 0.7", "divides_logits", True),
        ("--algo.kl.use_loss", "kl_loss", True),
        ("--actor.entropy_coef 0.001", "entropy_loss", True),
        ("--actor.entropy_coef 0", "entropy_loss", False),
        ("--ds.enable_sleep", "sleeps", True),
        ("--rollout.micro_batch_size 16", "scored_samples", 16),
        ("--train.dynamic_batch_enable --rollout.max_tokens_per_gpu 32768", "scored_tokens", 32768),
        ("--train.colocate_actor_ref", "processes", 1),
        (f"{SHARED} --algo.advantage.estimator gae --critic.num_gpus_per_node 4", "critic", "Qwen/Qwen2.5-3B"),
    ],
)
def test_settings_of_openrlhf_alone(words: str, name: str, value: object) -> None:
    assert parsed(f"{NEW} {words}").job["openrlhf"][name] == value


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--vllm.num_engines 0", "completions by transformers"),
        ("--actor.entropy_coef 0.001 --rollout.temperature 0.7", "modified by an inplace operation"),
        ("--actor.optim muon", "actor.optim"),
        ("--algo.advantage.estimator grpo", "expected gae"),
        ("--rollout.n_samples_per_prompt 1", "group_norm needs rollout.n_samples_per_prompt of 2 or more"),
        ("--train.enable_ema", "enable_ema"),
        ("--ds.ring_attn_size 2 --ds.packing_samples", "ring_attn_size"),
        ("--ref.num_gpus_per_node 2 --train.colocate_actor_ref", "OpenRLHF stops at that"),
        (f"{SHARED} --vllm.num_engines 2", "OpenRLHF stops at that"),
    ],
)
def test_what_its_flags_are_refused_for(words: str, said: str) -> None:
    with pytest.raises(VramplanError) as caught:
        parsed(f"{NEW} {words}")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("--reward.model_name_or_path x/y-rm", "reward.model_name_or_path"),
        ("--critic.model_name_or_path x/y-rm --reward.remote_url http://localhost", "critic.model_name_or_path"),
    ],
)
def test_an_unknown_model_on_the_actors_gpus_is_named_once_with_its_setting(
    words: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vramplan.inputs.model_names.resolve_model", unreachable)
    own = NEW.replace("--reward.remote_url http://localhost:5000", "")
    command = f"{own} {SHARED} --algo.advantage.estimator gae --critic.num_gpus_per_node 4 {words}"
    with pytest.raises(HubError) as raised:
        parsed(command)
    assert str(raised.value).endswith(
        f"--{key} x/y-rm: not shipped, no network; give a folder; it is on the actor's GPUs, so that these are not"
        f" known without it: set={key}=MODEL"
    )
    source = from_line(f"python -m openrlhf.cli.train_ppo_ray {command}", None, {})
    job = read(source.with_settings({key: "Qwen/Qwen2.5-3B"}), 1).job
    assert job["openrlhf"]["critic"] == "Qwen/Qwen2.5-3B"


def unreachable(name: str) -> None:
    raise HubError(f"{name}: not shipped, no network; give a folder; did you mean Llama?")


def test_models_on_the_actors_gpus() -> None:
    alone = OLD.replace("--remote_rm_url http://localhost:5000 ", "")
    rewarded = f"{alone} --colocate_all_models --reward_pretrain Qwen/Qwen2.5-1.5B"
    job = parsed(rewarded).job
    assert (job["reward_model"], job["openrlhf"]["processes"]) == ("Qwen/Qwen2.5-1.5B", 2)
    assert "critic" not in job["openrlhf"]
    critic = parsed(f"{rewarded} --advantage_estimator gae").job["openrlhf"]["critic"]
    assert critic == "Qwen/Qwen2.5-1.5B", "the reward model's weights, but for its head"


def test_a_command_is_answered_for_the_actors_gpus() -> None:
    line = f"python3 -m openrlhf.cli.train_ppo_ray {NEW} {SHARED} --vllm.enable_sleep --ds.enable_sleep"
    verdict = check(shlex.split(f"{line} --ds.zero_stage 3 --actor.gradient_checkpointing_enable"), "h100", num_gpus=4)
    found = verdict.estimate.job
    assert (found.openrlhf.sleeps, found.openrlhf.processes, found.generate_with) == (True, 1, "vllm_sleep")
    assert verdict.fits
    assert "OpenRLHF" in " ".join(verdict.estimate.assumptions)
