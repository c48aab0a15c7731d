"""The dtype of models that a script loads by from_pretrained without naming one, by the version of TRL."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramplan.errors import UnsupportedError
from vramplan.frameworks.detect import from_path
from vramplan.planner import check

DPO = """
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

name = "Qwen/Qwen2.5-0.5B-Instruct"
model = AutoModelForCausalLM.from_pretrained(name)
data = load_dataset("trl-lib/ultrafeedback_binarized", split="train")
tokenizer = AutoTokenizer.from_pretrained(name)
DPOTrainer(model, args=DPOConfig(output_dir="out"), train_dataset=data, processing_class=tokenizer).train()
"""
GKD = """
from datasets import load_dataset
from trl import GKDConfig, GKDTrainer

data = load_dataset("json", data_files="chats.jsonl", split="train")
GKDTrainer("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B", args=GKDConfig(output_dir="out"), train_dataset=data).train()
"""
GRPO = """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

data = load_dataset("json", data_files="prompts.jsonl", split="train")
args = GRPOConfig(output_dir="out", max_prompt_length=256)
GRPOTrainer("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B", args=args, train_dataset=data).train()
"""


def job_of(folder: Path, script: str, version: str) -> dict[str, object]:
    """The job of a script, read with a version of TRL."""
    path = folder / "train.py"
    path.write_text(script, encoding="utf-8")
    return check.read(from_path(path, None, {}), 1, version).job


@pytest.mark.parametrize(
    ("version", "dtype", "autocast"),
    [("0.16.0", "fp32", "none"), ("0.24.0", "fp32", "bf16"), ("1.16.0", "bf16", "bf16")],
)
def test_a_model_without_a_dtype_is_fp32_by_transformers_4(
    version: str, dtype: str, autocast: str, tmp_path: Path
) -> None:
    job = job_of(tmp_path, DPO, version)
    assert (job["dtype"], job["autocast"]) == (dtype, autocast)


def test_a_named_dtype_is_kept(tmp_path: Path) -> None:
    job = job_of(tmp_path, DPO.replace("_pretrained(name)", "_pretrained(name, torch_dtype='bfloat16')", 1), "0.16.0")
    assert job["dtype"] == "bf16"


@pytest.mark.parametrize(("version", "dtype"), [("0.22.0", "fp32"), ("1.16.0", "auto")])
def test_teachers_and_reward_models_likewise(version: str, dtype: str, tmp_path: Path) -> None:
    assert job_of(tmp_path, GKD, version)["teacher_dtype"] == dtype
    assert job_of(tmp_path, GRPO, version)["reward_dtype"] == dtype


def test_the_quick_start_that_ran_out_of_memory_does_not_fit(tmp_path: Path) -> None:
    """TRL's issue 3168: its quick start of March 2025, on an A100 with 80 GB."""
    path = tmp_path / "train.py"
    path.write_text(DPO, encoding="utf-8")
    assert not check.check(path, "a100-80gb", num_gpus=1, framework_version="0.16.0").estimate.fits


QUANTIZED = """
import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import BitsAndBytesConfig
from trl import GRPOConfig, GRPOTrainer

four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float16, bnb_4bit_use_double_quant=True)
args = GRPOConfig(output_dir="out", model_init_kwargs={"dtype": "float16"}, fp16=True, bf16=False)
GRPOTrainer(
    "Qwen/Qwen2-7B-Instruct",
    lambda completions, **_: [0.0] * len(completions),
    args=args,
    train_dataset=load_dataset("json", data_files="prompts.jsonl", split="train"),
    quantization_config=four,
    peft_config=LoraConfig(r=32, target_modules=["q_proj"]),
).train()
"""


def test_a_trainer_quantizes_the_model_that_it_loads(tmp_path: Path) -> None:
    """TRL 1.9 on: the argument goes to from_pretrained (trainer/grpo_trainer.py), as by model_init_kwargs."""
    job = job_of(tmp_path, QUANTIZED, "1.16.0")
    by_config = QUANTIZED.replace("    quantization_config=four,\n", "").replace(
        '"dtype": "float16"', '"dtype": "float16", "quantization_config": four'
    )
    assert (job["quantize"], job["double_quant"], job["dtype"]) == ("nf4", True, "fp16")
    assert job_of(tmp_path, by_config, "1.16.0") == job


def test_a_quantization_beside_a_loaded_model_is_refused(tmp_path: Path) -> None:
    script = QUANTIZED.replace(
        '    "Qwen/Qwen2-7B-Instruct",', '    AutoModelForCausalLM.from_pretrained("Qwen/Qwen2-7B-Instruct"),'
    ).replace("import BitsAndBytesConfig", "import AutoModelForCausalLM, BitsAndBytesConfig")
    with pytest.raises(UnsupportedError, match="has no effect"):
        job_of(tmp_path, script, "1.16.0")
