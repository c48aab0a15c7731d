"""How scripts and commands of TRL's PPOTrainer are read, and those that are refused with the nearest estimate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramplan import check
from vramplan.errors import VramplanError
from vramplan.inputs.job import Job
from vramplan.render.read_as import read_as

QWEN = "Qwen/Qwen2.5-0.5B-Instruct"
BASE = "Qwen/Qwen2.5-0.5B"
FLAGS = (
    f" --dataset_name a/b --output_dir out --model_name_or_path {QWEN} --sft_model_path {QWEN}"
    f" --reward_model_path {BASE}"
    " --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --total_episodes 10000 --num_ppo_epochs 1"
    " --num_mini_batches 1 --learning_rate 3e-6 --missing_eos_penalty 1.0 --stop_token eos"
)
COMMAND = f"python examples/scripts/ppo/ppo.py{FLAGS}"
SCRIPT = """
import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl{module} import PPOConfig, PPOTrainer

tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", padding_side="left")
policy = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", dtype=torch.bfloat16)
ref_policy = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", dtype=torch.bfloat16)
reward_model = AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen2.5-1.5B", num_labels=1)
value_model = AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen2.5-0.5B", num_labels=1, dtype="float32")
{before}
dataset = load_dataset("trl-lib/tldr", split="train")
args = PPOConfig(
    output_dir="out", per_device_train_batch_size=4, gradient_accumulation_steps=4, response_length=128,
    total_episodes=1000, num_ppo_epochs=4, kl_coef=0.05, {options}
)
trainer = PPOTrainer(
    args=args, processing_class=tokenizer, model=policy, train_dataset=dataset,
    {trainer}
)
trainer.train()
"""
FOUR = "ref_model=ref_policy, reward_model=reward_model, value_model=value_model"


def job_of(folder: Path, name: str, text: str, **options: Any) -> Job:
    """The job that a file is read as, with samples of 512 tokens."""
    path = folder / name
    path.write_text(text)
    return check(path, "h100", num_gpus=1, sequence_length=512, look_further=False, **options).estimate.job


def script(folder: Path, trainer: str = FOUR, options: str = "", before: str = "", module: str = "") -> Job:
    text = SCRIPT.format(trainer=trainer, options=options, before=before, module=module)
    return job_of(folder, "train.py", text)


def refusal(folder: Path, name: str, text: str, **options: Any) -> str:
    with pytest.raises(VramplanError) as caught:
        job_of(folder, name, text, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_example_script_loads_four_models_from_two_paths(tmp_path: Path) -> None:
    job = job_of(tmp_path, "run.sh", f"{COMMAND} --dtype bfloat16 --local_rollout_forward_batch_size 4")
    assert (job.task, job.value_model, job.reward_model) == ("ppo", BASE, BASE)
    assert (job.dtype, job.dtype_of_values, job.dtype_of_rewards) == ("bf16", "bf16", "bf16")
    assert (job.method, job.reference_source, job.loss) == ("full", "model", "standard")
    assert (job.micro_batch_size, job.gradient_accumulation_steps, job.rollout_batch_size) == (2, 8, 4)
    assert (job.sequence_length, job.prompt_length) == (512, 512 - 53)
    assert (job.checkpointing, job.autocast) == ("none", "none")
    path = tmp_path / "run.sh"
    verdict = check(path, "h100", num_gpus=1, look_further=False)
    assert verdict.open_length  # the data's prompts
    assert "PPO, transformers' generate, full fine-tuning, bf16, any length" in read_as(verdict)


def test_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("python ppo.py --dataset_name a/b --output_dir out --model_name_or_path Qwen/Qwen3-0.6B")
    verdict = check(path, "h100", num_gpus=1, sequence_length=256, look_further=False)
    job = verdict.estimate.job
    assert (job.dtype, job.value_model, job.rollout_batch_size) == ("fp32", "EleutherAI/pythia-160m", 64)
    assert verdict.reading.model == "EleutherAI/pythia-160m"
    notes = {note.key: note.text for note in verdict.reading.notes}
    assert "of model_name_or_path Qwen/Qwen3-0.6B the script loads the tokenizer alone" in notes["sft_model_path"]
    assert "pythia-160m is the value model and the reward model" in notes["reward_model_path"]
    assert notes["response_length"] == "not set: 53"


def test_prompts_that_the_other_script_keeps(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"python examples/scripts/ppo/ppo_tldr.py{FLAGS} --dtype bfloat16 --response_length 100")
    job = check(path, "h100", num_gpus=1, look_further=False).estimate.job
    assert (job.sequence_length, job.prompt_length) == (612, 512)


def test_the_launcher_switches_autocast_on(tmp_path: Path) -> None:
    launched = f"accelerate launch --num_processes 1 --mixed_precision bf16 examples/scripts/ppo/ppo.py{FLAGS}"
    assert job_of(tmp_path, "run.sh", launched).autocast == "bf16"
    assert job_of(tmp_path, "run.sh", f"{COMMAND} --bf16").autocast == "none"
    assert job_of(tmp_path, "run.sh", COMMAND, framework_version="0.24.0").autocast == "bf16"  # transformers 4
    assert job_of(tmp_path, "run.sh", COMMAND, framework_version="0.18.2").autocast == "none"


def test_older_scripts_load_by_name_alone(tmp_path: Path) -> None:
    old = job_of(tmp_path, "run.sh", COMMAND, framework_version="0.22.2")
    assert (old.dtype, old.dtype_of_values) == ("fp32", "fp32")
    text = refusal(tmp_path, "run.sh", f"{COMMAND} --torch_dtype bfloat16", framework_version="0.22.2")
    assert "loads the model by its name alone" in text
    assert "PPOTrainer of TRL 1.16.0 is not modelled; modelled are those of 0.15 to 1.12" in refusal(
        tmp_path, "run.sh", COMMAND, framework_version="1.16.0"
    )


def test_adapters_need_no_second_model(tmp_path: Path) -> None:
    job = job_of(tmp_path, "run.sh", f"{COMMAND} --dtype bfloat16 --use_peft --lora_r 32")
    assert (job.method, job.lora_rank, job.reference_source) == ("lora", 32, "adapters_off")


@pytest.mark.parametrize("module", ["", ".experimental.ppo"])
def test_a_script_with_four_models(tmp_path: Path, module: str) -> None:
    job = script(tmp_path, module=module, options="local_rollout_forward_batch_size=8")
    assert (job.value_model, job.value_dtype) == (BASE, "fp32")
    assert (job.reward_model, job.reward_dtype) == ("Qwen/Qwen2.5-1.5B", "bf16")  # as it was published
    assert (job.reference, job.rollout_batch_size, job.prompt_length) == ("model", 8, 384)
    assert (job.micro_batch_size, job.gradient_accumulation_steps) == (4, 4)


def test_a_script_without_keywords(tmp_path: Path) -> None:
    text = SCRIPT.format(trainer="", options="", before="", module="")
    head = text.partition("trainer = PPOTrainer(")[0]
    models = "args, tokenizer, policy, ref_policy, reward_model, dataset, value_model"
    job = job_of(tmp_path, "train.py", f"{head}PPOTrainer({models}).train()\n")
    assert (job.reference, job.value_model, job.reward_model) == ("model", BASE, "Qwen/Qwen2.5-1.5B")


def test_adapters_of_a_script(tmp_path: Path) -> None:
    scorers = "ref_model=None, reward_model=reward_model, value_model=value_model"
    job = script(tmp_path, f"{scorers}, peft_config=LoraConfig(r=64, target_modules='all-linear')")
    assert (job.method, job.lora_rank, job.reference, job.reference_source) == ("lora", 64, None, "adapters_off")


def test_a_copy_as_reference(tmp_path: Path) -> None:
    given = FOUR.replace("=ref_policy", "=create_reference_model(policy)")
    job = script(tmp_path, given, before="from trl import create_reference_model\nreward_model.to('cuda').eval()")
    assert (job.reference, job.reward_model) == ("model", "Qwen/Qwen2.5-1.5B")


def test_samples_for_the_log_count_as_an_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    for options, expected in (
        ("", 8),
        ("num_sample_generations=0,", None),
        ("per_device_eval_batch_size=2,", None),
    ):
        given = f"{FOUR}, eval_dataset=dataset"
        text = SCRIPT.format(
            trainer=given, before="", module="", options=f"{options} local_rollout_forward_batch_size=4"
        )
        path.write_text(text)
        verdict = check(path, "h100", num_gpus=1, sequence_length=512, look_further=False)
        assert verdict.reading.eval_batch_size == expected
        assert (verdict.evaluation_bytes is None) == (expected is None)


def test_samples_for_the_log_turn_the_verdict(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    text = f"{COMMAND} --local_rollout_forward_batch_size 1 --per_device_eval_batch_size {{}}"
    path.write_text(text.format(900))
    verdict = check(path, "h100", num_gpus=1, sequence_length=512)
    assert verdict.trains
    assert not verdict.fits
    assert 0 < (verdict.eval_batch_size or 0) < 900
    path.write_text(text.format(verdict.eval_batch_size))
    assert check(path, "h100", num_gpus=1, sequence_length=512).fits


def test_mini_batches_of_whole_micro_batches(tmp_path: Path) -> None:
    job = script(tmp_path, options="num_mini_batches=2")
    assert (job.micro_batch_size, job.gradient_accumulation_steps) == (4, 4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("num_mini_batches=3", "expected a divisor of per_device_train_batch_size x gradient_accumulation_steps (16)"),
        ("num_mini_batches=8", "set per_device_train_batch_size 2 and gradient_accumulation_steps 8"),
        ("use_liger_kernel=True", "use_liger_kernel"),
        ("ref_adapter_name='reference'", "ref_adapter_name"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, options: str, said: str) -> None:
    text = SCRIPT.format(trainer=FOUR, options=options, before="", module="")
    assert said in refusal(tmp_path, "train.py", text)


@pytest.mark.parametrize(
    ("trainer", "before", "said"),
    [
        ("ref_model=ref_policy, reward_model=reward_model", "", "PPOTrainer has no value_model"),
        (FOUR.replace("=value_model", "=reward_model"), "", "one object as reward_model and value_model"),
        (FOUR.replace("=value_model", "=load_value()"), "", "value_model of PPOTrainer is not known"),
        (FOUR.replace("=value_model", "=policy"), "", "is not read; read: ForSequenceClassification's"),
        (FOUR, "policy.gradient_checkpointing_enable()", "gradient_checkpointing_enable"),
        (FOUR, "value_model.float()", "value_model.float() changes its dtype"),
        (FOUR, "reward_model.to(torch.float32)", "reward_model.to() changes its dtype"),
        (FOUR.replace("ref_model", "ref_policy"), "", "PPOTrainer(ref_policy=...) is of TRL 0.12"),
    ],
)
def test_models_that_are_refused(tmp_path: Path, trainer: str, before: str, said: str) -> None:
    text = SCRIPT.format(trainer=trainer, options="", before=before, module="")
    assert said in refusal(tmp_path, "train.py", text)


@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_a_script_that_accelerate_starts_with_deepspeed(tmp_path: Path, stage: str) -> None:
    launcher = f"accelerate launch --config_file examples/accelerate_configs/deepspeed_{stage}.yaml"
    flags = f"{FLAGS} --dtype bfloat16 --local_rollout_forward_batch_size 2"
    job = job_of(tmp_path, "run.sh", f"{launcher} examples/scripts/ppo/ppo.py{flags}")
    assert (job.strategy, job.ppo_trainer, job.dtype_of_values) == (stage, "trl", "bf16")


def test_deepspeed_by_the_training_arguments_stops(tmp_path: Path) -> None:
    (tmp_path / "ds_zero2.json").write_text('{"zero_optimization": {"stage": 2}}')
    said = "start it by accelerate launch --config_file"
    assert said in refusal(tmp_path, "run.sh", f"python examples/scripts/ppo/ppo.py{FLAGS} --deepspeed ds_zero2.json")


def test_fsdp_is_refused_with_four_whole_models(tmp_path: Path) -> None:
    launched = "accelerate launch --config_file examples/accelerate_configs/fsdp2.yaml examples/scripts/ppo/ppo.py"
    text = refusal(tmp_path, "run.sh", f"{launched}{FLAGS} --dtype bfloat16 --local_rollout_forward_batch_size 2")
    assert "PPOTrainer under fsdp is not modelled" in text
    nearest = (
        f"--task ppo --method full --autocast none --reward-model {BASE} --value-model {BASE} --rollout-batch-size 2"
    )
    assert f"`vramplan estimate {QWEN} --gpu" in text
    assert nearest in text


def test_the_former_trainer_names_the_one_that_runs_the_same(tmp_path: Path) -> None:
    text = """
from trl import AutoModelForCausalLMWithValueHead, PPOConfig, PPOTrainer

config = PPOConfig(model_name="gpt2", learning_rate=1.41e-5, batch_size=16, mini_batch_size=4)
model = AutoModelForCausalLMWithValueHead.from_pretrained(config.model_name)
ref_model = AutoModelForCausalLMWithValueHead.from_pretrained(config.model_name)
ppo_trainer = PPOTrainer(config, model, ref_model, tokenizer, dataset=dataset, data_collator=collator)
for batch in ppo_trainer.dataloader:
    stats = ppo_trainer.step(batch["query"], batch["response"], rewards)
"""
    said = refusal(tmp_path, "train.py", text)
    assert "TRL before 0.12" in said
    assert "--task ppo --reward-model MODEL --seq-len N --prompt-len N" in said
    assert "--value-model" not in said
