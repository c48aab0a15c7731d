"""Errors of `check` speak in the framework's own keys, and name what is open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramplan import check, fix
from vramplan.cli.options import spell_flag
from vramplan.errors import VramplanError

PREFERENCE = "--train_type lora --lora_rank 8 --torch_dtype bfloat16 --max_length 1024"


def refusal(target: Any, **given: Any) -> str:
    with pytest.raises(VramplanError) as caught:
        check(target, "a100-80gb", **given)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"swift rlhf --rlhf_type simpo --model Qwen/Qwen2.5-0.5B {PREFERENCE} --deepspeed zero2_offload",
         "ZeRO-2 the optimizer offloaded with SimPO is not modelled yet; use ZeRO-2 and no offloading"),
        ("llamafactory-cli train --stage rm --do_train --model_name_or_path Qwen/Qwen2.5-0.5B --finetuning_type full"
         " --bf16 --deepspeed examples/deepspeed/ds_z3_config.json --per_device_train_batch_size 1",
         "use ZeRO-2, or finetuning_type lora"),
        (f"swift rlhf --rlhf_type rm --model Qwen/Qwen2.5-0.5B {PREFERENCE} --deepspeed zero3_offload",
         "DeepSpeed stops, as adapters are fp32"),
    ],
)  # fmt: skip
def test_a_refusal_has_no_flags_of_estimate(line: str, said: str) -> None:
    error = refusal(line.split(), num_gpus=1)
    assert said in error
    assert "strategy" not in error


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--rlhf_type grpo --max_length 512 --padding_free true", "nearest: --framework-version 4.1"),
        ("--rlhf_type orpo --packing true", "ms-swift stops at it with rlhf_type orpo"),
        ("--rlhf_type ppo", "--set reward_model=MODEL"),
        ("--rlhf_type grpo --max_length 512 --reward_model Qwen/Qwen2.5-1.5B", "--reward-model Qwen/Qwen2.5-1.5B"),
        ("--rlhf_type grpo --loss_type other", "modelled: grpo, bnpo"),
        ("--rlhf_type kto --sequence_parallel_size 2", "--set sequence_parallel_size= estimates the run without it"),
    ],
)
def test_a_refusal_of_swift_names_a_way_forward(more: str, said: str) -> None:
    line = f"swift rlhf --model Qwen/Qwen2.5-0.5B --train_type lora --attn_impl flash_attn {more}"
    with pytest.raises(VramplanError) as caught:
        check(line.split(), "a100-80gb", num_gpus=1)
    assert said in caught.value.spelled(spell_flag)


@pytest.mark.parametrize(
    ("visible", "processes", "said"), [("0,1", "", "NPROC_PER_NODE=2"), ("0,1,2,3", "2", "set NPROC_PER_NODE=4")]
)
def test_grpo_of_one_process_on_several_gpus(visible: str, processes: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    started = f"NPROC_PER_NODE={processes} " if processes else ""
    path.write_text(
        f"CUDA_VISIBLE_DEVICES={visible} {started}swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-0.5B"
        " --train_type lora"
    )
    assert said in refusal(path)


def test_vllm_on_the_gpus_of_several_nodes(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        "export NNODES=2\nexport NPROC_PER_NODE=2\nswift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-0.5B"
        " --tuner_type lora --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.4"
        " --vllm_max_model_len 2048 --max_length 512 --max_completion_length 512 --per_device_train_batch_size 2"
    )
    job = check(path, "a100-80gb", look_further=False).estimate.job
    assert (job.num_nodes, job.num_gpus) == (2, 4)


GRPO = """base_model: Qwen/Qwen2.5-7B-Instruct
rl: {rl}
adapter: lora
lora_r: 16
lora_target_linear: true
micro_batch_size: 8
gradient_accumulation_steps: 4
bf16: true
vllm:
  gpu_memory_utilization: 0.3
  tensor_parallel_size: {parallel}
trl:
  use_vllm: true
  vllm_mode: colocate
  max_completion_length: 1024
  steps_per_generation: 2
  temperature: 0.7
  reward_funcs: [rewards.is_right]
"""


def train_yaml(folder: Path, text: str) -> Path:
    path = folder / "train.yaml"
    path.write_text(text)
    return path


@pytest.mark.full
def test_gpus_that_share_one_vllm_are_counted_together(tmp_path: Path) -> None:
    path = train_yaml(tmp_path, GRPO.format(rl="grpo", parallel=4))
    verdict = check(path, "h200", framework_version="0.19.0", sequence_length=2048)
    assert {case.num_gpus for case in verdict.cases} == {4, 8}
    assert "does not divide the number of GPUs" in refusal(path, num_gpus=2, sequence_length=2048)


def test_gdpo_is_grpo_and_keys_that_axolotl_drops_are_named(tmp_path: Path) -> None:
    text = GRPO.format(rl="gdpo", parallel=1)
    verdict = check(train_yaml(tmp_path, text), "h200", num_gpus=1, framework_version="0.19.0", sequence_length=2048)
    job = verdict.estimate.job
    assert (job.task, verdict.reading.task, job.steps_per_generation) == ("grpo", "GDPO", None)
    notes = {note.key: note for note in verdict.reading.notes}
    assert "does not know it" in notes["trl.steps_per_generation"].text
    assert notes["trl.temperature"].kind == "ignored"
    text = text.replace("  temperature", "  max_completion_lenght: 9\n  temperature")
    known = check(train_yaml(tmp_path, text), "h200", num_gpus=1, framework_version="0.19.0", sequence_length=2048)
    (misspelt,) = [note for note in known.reading.notes if note.key == "trl.max_completion_lenght"]
    assert "did you mean max_completion_length?" in misspelt.text


@pytest.mark.full
def test_fix_takes_the_length_that_check_shows(tmp_path: Path) -> None:
    text = (
        GRPO.format(rl="grpo", parallel=1).replace("7B", "1.5B").replace("micro_batch_size: 8", "micro_batch_size: 64")
    )
    path = train_yaml(tmp_path, text)
    shown = check(path, "a100-80gb", num_gpus=1, framework_version="0.19.0", look_further=False)
    assert shown.open_length
    assert not shown.fits
    fixed = fix(path, "a100-80gb", num_gpus=1, framework_version="0.19.0")
    assert fixed.taken_length == fixed.before.estimate.job.sequence_length == shown.estimate.job.sequence_length
    assert fixed.after.fits


REWARD = """base_model: Qwen/Qwen2.5-0.5B
model_type: AutoModelForSequenceClassification
reward_model: true
center_rewards_coefficient: 0.01
sequence_len: 1000
micro_batch_size: 2
attn_implementation: flash_attention_2
bf16: true
gradient_checkpointing: true
"""


def test_axolotl_reward_models_are_trls(tmp_path: Path) -> None:
    job = check(train_yaml(tmp_path, REWARD), "a100-80gb", num_gpus=1, framework_version="0.19.0").estimate.job
    assert (job.task, job.loss, job.method, job.sequence_length, job.batches) == (
        "reward", "standard", "full", 1024, "padded",
    )  # fmt: skip
    unpadded = train_yaml(tmp_path, REWARD + "pad_to_sequence_len: false\n")
    assert check(unpadded, "a100-80gb", num_gpus=1, framework_version="0.19.0").estimate.job.sequence_length == 1000


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("process_reward_model: true\n", "--task token_classification"),
        ("num_labels: 3\n", "one number for each text"),
        ("load_in_8bit: true\nadapter: lora\nlora_r: 8\nlora_target_linear: true\n", "--task reward"),
        ("plugins: [axolotl.integrations.kd.KDPlugin]\n", "has KDPlugin"),
    ],
)
def test_what_of_axolotl_rewards_is_not_modelled(more: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(train_yaml(tmp_path, REWARD + more), num_gpus=1, framework_version="0.19.0")


@pytest.mark.parametrize(
    ("more", "reads"),
    [
        ("", False),
        ("embeddings_skip_upcast: true\n", False),
        ("deepspeed: deepspeed_configs/zero2.json\n", True),
        ("fsdp_version: 2\nfsdp_config:\n  offload_params: false\n", True),
        ("plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n", True),
        ("attn_implementation: flash_attention_2\n", True),
    ],
)
def test_where_axolotl_keeps_fp32_embeddings(more: str, reads: bool, tmp_path: Path) -> None:
    path = train_yaml(tmp_path, f"base_model: Qwen/Qwen2.5-0.5B\nbf16: true\nmicro_batch_size: 1\n{more}")
    if reads:
        assert check(path, "a100-80gb", num_gpus=2, framework_version="0.19.0").estimate.job.dtype == "bf16"
    else:
        assert "fp32 embeddings" in refusal(path, num_gpus=1, framework_version="0.19.0")


MEGATRON = """NPROC_PER_NODE=4 megatron rlhf --rlhf_type {kind} --model Qwen/Qwen2.5-7B-Instruct --micro_batch_size 2
 --global_batch_size 16 --tensor_model_parallel_size 2 --max_length 4096 --recompute_granularity full {more}"""


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        ("dpo", "", "--task dpo --method full --seq-len 4096 --micro-batch 2 --accumulation 2"),
        ("kto", "--tuner_type lora --lora_rank 16", "--task kto --lora-rank 16"),
        ("grpo", "--max_completion_length 1024 --beta 0", "--task grpo --method full --seq-len 5120 --prompt-len 4096"),
        ("gkd", "--teacher_model Qwen/Qwen2.5-14B-Instruct", "--teacher Qwen/Qwen2.5-14B-Instruct"),
    ],
)
def test_megatron_swift_names_the_nearest_estimate(kind: str, more: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(MEGATRON.format(kind=kind, more=more).replace("\n", " \\\n"))
    error = refusal(path)
    assert "tensor parallelism" in error
    assert said in error


def test_a_ray_configuration_of_megatron_swift_is_recognised(tmp_path: Path) -> None:
    text = """rlhf_type: grpo
model: Qwen/Qwen2.5-1.5B-Instruct
num_generations: 8
micro_batch_size: 2
global_batch_size: 16
max_completion_length: 512
colocate_groups: [[train, rollout]]
train: {gpus: 4, tuner_type: lora, lora_rank: 8, tensor_model_parallel_size: 2}
rollout: {gpus: 4, vllm_gpu_memory_utilization: 0.4}
"""
    error = refusal(train_yaml(tmp_path, text))
    assert "Megatron is not modelled yet: --tensor-model-parallel-size 2" in error
    assert "--task grpo --seq-len 2560 --prompt-len 2048" in error
    assert "--num-gpus 4" in error
