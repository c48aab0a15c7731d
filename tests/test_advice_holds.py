"""What `check` promises of a change is what it says of a configuration that holds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramplan import check, suggest
from vramplan.errors import UnsupportedError
from vramplan.frameworks.readers.python_words import read_keys
from vramplan.inputs.load import load_named_model
from vramplan.planner.config_levers import levers_of
from vramplan.planner.verdict import Verdict

SCRIPT = """import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import {name}Config, {name}Trainer

model = AutoModelForCausalLM.from_pretrained("meta-llama/Meta-Llama-3-8B-Instruct", torch_dtype=torch.bfloat16{more})
args = {name}Config(
    output_dir="out",
    per_device_train_batch_size={batch},
    gradient_accumulation_steps={steps},
    max_length=1536,
    bf16=True,
    gradient_checkpointing=True,
)
trainer = {name}Trainer(
    model=model,
    args=args,
    train_dataset=load_dataset("json", data_files="pairs.jsonl"),
    peft_config=LoraConfig(r=16, target_modules="all-linear"),
)
trainer.train()
"""
FOUR_BITS = "quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)"


def script(folder: Path, name: str, more: str = "", batch: int = 4, steps: int = 8) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(name=name, more=more, batch=batch, steps=steps))
    return path


@pytest.mark.parametrize(
    ("name", "version", "gpu"),
    [
        ("KTO", "0.19", "rtx4090"),
        pytest.param("DPO", "0.19", "rtx4090", marks=pytest.mark.full),
        pytest.param("KTO", "1.16", "rtx4060ti-16gb", marks=pytest.mark.full),
    ],
)
def test_four_bits_in_a_script_as_its_version_of_trl_takes_them(
    tmp_path: Path, name: str, version: str, gpu: str
) -> None:
    """TRL prepared quantized models of PEFT before, whose norms are fp32 then, and casts adapters since."""

    def verdict(path: Path) -> Verdict:
        return check(path, gpu, num_gpus=1, framework_version=version)

    change = verdict(script(tmp_path, name)).nearest_change
    assert change is not None
    assert change.settings[0] == FOUR_BITS
    size = change.micro_batch_size
    changed = verdict(script(tmp_path, name, f", {FOUR_BITS}", size, 32 // size))
    assert changed.fits
    assert changed.need_bytes == change.device_total_bytes


@pytest.mark.parametrize(("version", "fields"), [("0.19", {"fp32_norms": True}), ("1.16", {"lora_dtype": "bf16"})])
def test_fields_beside_four_bits(tmp_path: Path, version: str, fields: dict[str, object]) -> None:
    verdict = check(script(tmp_path, "KTO"), "rtx4090", num_gpus=1, framework_version=version)
    spec, job = load_named_model(verdict.estimate.model), verdict.estimate.job
    levers = levers_of(verdict.reading)(spec, job, verdict.card, verdict.need_bytes)
    (four_bits,) = (lever for lever in levers if lever.about == "quantize")
    assert four_bits.update.items() >= fields.items()


def test_calls_as_keys() -> None:
    adapters = 'get_peft_model(model, LoraConfig(target_modules="all-linear"))'
    assert read_keys({"model": adapters, "optim": "adamw_8bit"}) == {
        "use_peft": "true",
        "lora_r": "8",
        "lora_dropout": "0.0",
        "lora_target_modules": "all-linear",
        "optim": "adamw_8bit",
    }
    assert read_keys({"quantization_config": FOUR_BITS.partition("=")[2]}) == {
        "load_in_4bit": "True",
        "bnb_4bit_compute_dtype": "torch.bfloat16",
    }


LLAMA_FACTORY = """model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: dpo
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
cutoff_len: 2048
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
bf16: true
val_size: 0.1
per_device_eval_batch_size: 4
eval_strategy: steps
"""


def test_a_promise_counts_the_evaluation(tmp_path: Path) -> None:
    """Evaluation of 2 pairs needs more than training of 1."""
    path = tmp_path / "dpo.yaml"
    path.write_text(LLAMA_FACTORY)
    change = check(path, "rtx4090", num_gpus=1).nearest_change
    assert change is not None
    assert change.eval_batch_size == 2
    settings = dict(line.split(": ") for line in (*change.settings, *change.batch))
    changed = check(path, "rtx4090", num_gpus=1, settings=settings)
    assert changed.fits
    assert changed.need_bytes == change.device_total_bytes > changed.estimate.device_total_bytes


def test_another_batch_counts_the_evaluation_too(tmp_path: Path) -> None:
    path = tmp_path / "dpo.yaml"
    path.write_text(LLAMA_FACTORY + "quantization_bit: 4\n")
    verdict = check(path, "rtx4090", num_gpus=1)
    assert verdict.plan is not None
    settings = {
        "per_device_train_batch_size": str(verdict.plan.micro_batch_size),
        "gradient_accumulation_steps": str(verdict.plan.gradient_accumulation_steps),
        "per_device_eval_batch_size": str(verdict.eval_batch_size),
    }
    changed = check(path, "rtx4090", num_gpus=1, settings=settings)
    assert changed.fits
    assert changed.need_bytes == verdict.plan_bytes > verdict.plan.estimate.device_total_bytes


QWEN = "Qwen/Qwen2.5-7B-Instruct"
FULL = "trl {task} --model_name_or_path {model} --dtype bfloat16 --gradient_checkpointing true"


@pytest.mark.parametrize(
    ("task", "model"), [("dpo", QWEN), pytest.param("kto", "meta-llama/Llama-3.1-8B-Instruct", marks=pytest.mark.full)]
)
def test_a_reference_computed_before(task: str, model: str) -> None:
    """It leaves the result as it is: no change of the optimizer is cheaper."""
    command = [
        *FULL.format(task=task, model=model).split(),
        "--per_device_train_batch_size",
        "4",
        "--max_length",
        "2048",
    ]
    change = check(command, "a100-80gb", num_gpus=1).nearest_change
    assert change is not None
    assert change.settings == ("--precompute_ref_log_probs true",)
    changed = check([*command, "--precompute_ref_log_probs", "true"], "a100-80gb", num_gpus=1)
    assert changed.fits
    assert changed.need_bytes == change.device_total_bytes


@pytest.mark.parametrize(("version", "is_kept"), [("0.28.0", False), ("0.29.1", True), ("1.1.0", True), ("1.2", False)])
def test_versions_that_keep_the_second_model(version: str, is_kept: bool) -> None:
    """DPOTrainer of TRL 0.29 to 1.1 loads it whatever is computed before."""
    command = [
        *FULL.format(task="dpo", model=QWEN).split(),
        "--max_length",
        "1024",
        "--precompute_ref_log_probs",
        "true",
    ]
    if is_kept:
        with pytest.raises(UnsupportedError, match="keeps the second model"):
            check(command, "h200-sxm", num_gpus=1, framework_version=version)
    else:
        verdict = check(command, "h200-sxm", num_gpus=1, framework_version=version)
        assert verdict.estimate.job.reference == "precomputed"


def test_not_proposed_where_the_second_model_stays() -> None:
    command = [
        *FULL.format(task="dpo", model=QWEN).split(),
        "--per_device_train_batch_size",
        "4",
        "--max_length",
        "2048",
    ]
    verdict = check(command, "a100-80gb", num_gpus=1, framework_version="1.0.0")
    assert verdict.nearest_change is not None
    assert not any("reference" in change.update and change.fits for change in verdict.advice)


@pytest.mark.parametrize(
    ("settings", "is_proposed"),
    [({"method": "full"}, True), ({"method": "lora"}, False), ({"method": "full", "reference": "precomputed"}, False)],
)
def test_suggest_lists_a_reference_computed_before(settings: dict[str, str], is_proposed: bool) -> None:
    search = suggest("qwen2.5-7b", "rtx4090", 16, task="dpo", sequence_length=2048, **settings)
    assert search.recommended is None or not is_proposed
    assert any(change.update == {"reference": "precomputed"} for change in search.advice) == is_proposed
