"""OpenRLHF: its loops on the tape against its own code on fake tensors, and what `check` reads and refuses."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from tests.helpers import cli, spec_of
from tests.openrlhf_runs import recorded
from tests.recorded_runs import errors_of
from tests.trl_runs import GPU
from vramplan import check, estimate
from vramplan.errors import UnsupportedError, VramplanError
from vramplan.frameworks.detect import from_line
from vramplan.planner.read_config import read

RECORDED = recorded()
MODEL, LARGE = "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-3B"


def name_of(row: dict[str, Any]) -> str:
    return f"{row['model']} {' '.join(f'{name}={value}' for name, value in row['job'].items())}"


@pytest.mark.parametrize("row", RECORDED[::5], ids=name_of)
def test_peaks_agree_with_its_trainers(row: dict[str, Any]) -> None:
    assert max(errors_of(row, GPU).values()) <= 0.001


@pytest.mark.full
def test_all_runs_agree_with_its_trainers() -> None:
    assert len(RECORDED) >= 35
    errors = {name_of(row): max(errors_of(row, GPU).values()) for row in RECORDED}
    assert not [name for name, worst in errors.items() if worst > 0.001]


def test_the_logits_of_the_last_micro_batch_are_still_there() -> None:
    """Supervised: those, the model's half-precision ones and the new fp32 ones; a DPO step drops all of them."""

    def forward(length: int, **settings: Any) -> int:
        job = {"loss": "kept_log_probs", "loop": "plain", "autocast": "none", "method": "full", **settings}
        return estimate("llama-3.2-1b", "h100", sequence_length=length, micro_batch_size=4, **job).phases["forward"]

    more = 4 * 1024 * spec_of("llama-3.2-1b").config["vocab_size"]
    assert forward(2048) - forward(1024) >= (4 + 2 + 4) * more


def job(words: str, program: str = "train_sft", num_gpus: int = 4) -> dict[str, Any]:
    line = f"deepspeed --num_gpus {num_gpus} --module openrlhf.cli.{program} {words}"
    return read(from_line(line, None, {}), num_gpus).job


def test_the_defaults() -> None:
    found = job(f"--model.model_name_or_path {MODEL}")
    assert (found["sequence_length"], found["micro_batch_size"], found["gradient_accumulation_steps"]) == (2048, 8, 4)
    assert (found["strategy"], found["checkpointing"], found["attention"]) == ("zero2", "none", "flash")
    assert (found["method"], found["batches"], found["loss"]) == ("full", "padded", "kept_log_probs")
    assert found["zero"] == {
        "reduce_bucket_size": 500_000_000,
        "prefetch_bucket_size": 50_000_000,
        "param_persistence_threshold": 100_000,
        "overlap_comm": False,
    }
    assert job(f"--model.model_name_or_path {MODEL}", "train_dpo")["sequence_length"] == 512


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        ("--train.micro_batch_size 2", "--micro_train_batch_size 2", {"micro_batch_size": 2}),
        ("--ds.zero_stage 3", "--zero_stage 3", {"strategy": "zero3"}),
        ("--ds.packing_samples", "--packing_samples", {"batches": "packed", "attention": "flash"}),
        ("--ds.adam_offload", "--adam_offload", {"offload": "optimizer"}),
        ("--ds.lora.rank 16", "--lora_rank 16", {"method": "lora", "lora_rank": 16, "lora_dtype": "bf16"}),
        (
            "--ds.lora.rank 8 --ds.load_in_4bit",
            "--lora_rank 8 --load_in_4bit",
            {"quantize": "nf4", "lora_dtype": "bf16"},
        ),
        (
            "--model.gradient_checkpointing_enable --model.gradient_checkpointing_reentrant",
            "--gradient_checkpointing --gradient_checkpointing_use_reentrant",
            {"checkpointing": "full", "reentrant": True},
        ),
        ("--ds.attn_implementation eager", "--attn_implementation eager", {"attention": "eager"}),
        ("--data.max_len 4096", "--max_len 4096", {"sequence_length": 4096}),
        ("--ds.lora.rank 8 --ds.zero_stage 3", "--lora_rank 8 --zero_stage 3", {"lora_dtype": "fp32"}),
    ],
)
def test_flags_of_both_styles(new: str, old: str, expected: dict[str, Any]) -> None:
    for words in (f"--model.model_name_or_path {MODEL} {new}", f"--pretrain {MODEL} --bf16 {old}"):
        found = job(words)
        assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        (
            "train_sft",
            "--ds.ring_attn_size 2 --ds.packing_samples",
            "estimates whole ones on each GPU",
        ),
        ("train_sft", "--optim muon", "optim"),
        ("train_sft", "--ds.grad_accum_dtype fp32", "grad_accum_dtype"),
        ("train_sft", "--ds.grad_accum_dtype bf16 --ds.zero_stage 0", "grad_accum_dtype"),
        ("train_dpo", "--ref.offload", "ref.offload"),
        ("train_dpo", "--ds.lora.rank 8 --ds.zero_stage 3", "ZeRO-3"),
        ("train_rm", "--ds.zero_stage 3", "with train_rm is not modelled yet; ds.zero_stage 2"),
        ("train_rm", "--ds.packing_samples", "ds.packing_samples"),
        ("train_rm", "--ds.adam_offload", "ds.adam_offload: True with train_rm is not modelled yet; without it, it is"),
        ("train_rm", "--ds.lora.rank 8 --ds.load_in_4bit --ds.adam_offload", "without the optimizer in host memory"),
        ("train_kto", "--ds.lora.rank 8", "train_kto"),
        ("train_ppo_ray", "--vllm.num_engines 8 --train.enable_ema", "enable_ema"),
        ("train_ppo_ray", "--ds.lora.rank 8 --ds.adam_offload --algo.advantage.estimator reinforce", "num_engines"),
    ],
)
def test_a_refusal_names_an_estimate_that_runs(program: str, words: str, said: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        job(f"--model.model_name_or_path {MODEL} {words}", program)
    text = str(caught.value)
    assert said in text
    line = text[text.index("vramplan estimate") :].replace("--gpu GPU", "--gpu h100")
    done = cli(*shlex.split(line)[1:])
    assert done.returncode in (0, 1), done.stderr
    assert "H100" in done.stdout


def test_a_reward_model_has_no_logits_and_is_always_evaluated() -> None:
    line = f"deepspeed --num_gpus 1 --module openrlhf.cli.train_rm --model.model_name_or_path {MODEL}"
    verdict = check(shlex.split(line), "h100", num_gpus=1)
    found = verdict.estimate.job
    assert (found.task, found.loss, found.micro_batch_size, found.sequence_length) == (
        "reward",
        "kept_log_probs",
        1,
        512,
    )
    assert verdict.reading.eval_batch_size == 1
    whole = estimate(MODEL, "h100", **{**found.settings, "task": "dpo", "reference": "none"})
    vocabulary = spec_of("qwen2.5-0.5b").config["vocab_size"]
    assert whole.phases["forward"] - verdict.estimate.phases["forward"] > 2 * 512 * vocabulary * 4


def test_changes_are_those_that_its_flags_can_say() -> None:
    line = f"deepspeed --num_gpus 2 --module openrlhf.cli.train_sft --model.model_name_or_path {LARGE}"
    advice = check(shlex.split(line), "rtx4090", num_gpus=2).advice
    assert any(effect.update.get("strategy") == "zero3" for effect in advice)
    assert not any("offload" in effect.update for effect in advice)  # a flag without a value


@pytest.mark.parametrize(
    ("model", "settings", "said"),
    [
        ("llama-3.2-1b", {"loop": "trainer"}, "loop=plain"),
        ("llama-3.2-1b", {"autocast": "bf16"}, "autocast=none"),
        ("llama-3.2-1b", {"strategy": "fsdp", "num_gpus": 2}, "strategy=zero2"),
        ("llama-3.2-1b", {"task": "kto"}, "no meaning"),
        ("llama-3.2-1b", {"task": "reward", "strategy": "zero3"}, "use batches=padded"),
        ("mixtral-8x7b-v0.1", {}, "experts"),
    ],
)
def test_what_its_loops_do_not_do(model: str, settings: dict[str, Any], said: str) -> None:
    job = {"loss": "kept_log_probs", "loop": "plain", "autocast": "none", "sequence_length": 512, **settings}
    with pytest.raises(VramplanError, match=said):
        estimate(model, "h100", **job)
