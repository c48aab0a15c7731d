"""How scripts, flags and YAML of TRL's GKDTrainer are read, and those of a teacher that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramplan import check
from vramplan.errors import VramplanError
from vramplan.inputs.job import Job
from vramplan.render.read_as import read_as

COMMAND = (
    "python examples/scripts/gkd.py --model_name_or_path Qwen/Qwen2-0.5B-Instruct"
    " --teacher_model_name_or_path Qwen/Qwen2-1.5B-Instruct --dataset_name a/b --per_device_train_batch_size 4"
    " --gradient_accumulation_steps 8 --output_dir out"
)
SCRIPT = """
import torch
from transformers import AutoModelForCausalLM
from trl.experimental.gkd import GKDConfig, GKDTrainer
{before}
args = GKDConfig(output_dir="out", max_length=2048, {options})
trainer = GKDTrainer({trainer}, args=args)
trainer.train()
"""
STUDENT = 'model="Qwen/Qwen3-0.6B"'


def job_of(folder: Path, name: str, text: str, **options: Any) -> Job:
    """The job that a file is read as."""
    path = folder / name
    path.write_text(text)
    return check(path, "h100", num_gpus=1, look_further=False, **options).estimate.job


def script(folder: Path, trainer: str, options: str = "", before: str = "") -> Job:
    return job_of(folder, "train.py", SCRIPT.format(trainer=trainer, options=options, before=before))


def test_the_first_line_names_the_teacher(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{COMMAND} --dtype bfloat16")
    expected = ", GKD, teacher Qwen2-1.5B-Instruct, transformers' generate, full fine-tuning, bf16, "
    assert expected in read_as(check(path, "h100", num_gpus=1))


def test_the_example_script_loads_the_teacher_as_the_student(tmp_path: Path) -> None:
    job = job_of(tmp_path, "run.sh", f"{COMMAND} --dtype bfloat16 --use_peft --lora_r 64")
    assert (job.task, job.teacher, job.loss, job.method) == ("gkd", "Qwen/Qwen2-1.5B-Instruct", "standard", "lora")
    assert (job.generated_by, job.divergence, job.dtype_of_teacher) == ("student", "jsd", "bf16")
    assert (job.sequence_length, job.prompt_length, job.batches) == (1024, 1024 - 128, "padded")
    assert job_of(tmp_path, "run.sh", COMMAND).dtype_of_teacher == "fp32"  # TRL's default


def test_a_teacher_that_the_script_loads(tmp_path: Path) -> None:
    loads = 'teacher = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-4B", {})'
    job = script(
        tmp_path,
        f"{STUDENT}, teacher_model=teacher",
        "lmbda=1.0, beta=1.0, max_new_tokens=256",
        loads.format("dtype=torch.float32"),
    )
    assert (job.teacher, job.teacher_dtype, job.divergence) == ("Qwen/Qwen3-4B", "fp32", "reverse_kl")
    assert (job.generated_by, job.sequence_length, job.prompt_length) == ("student", 2048, 1792)
    job = script(tmp_path, f"{STUDENT}, teacher_model=teacher", "", loads.format(""))
    assert job.teacher_dtype == "bf16"  # as it was published


def test_a_teacher_by_name(tmp_path: Path) -> None:
    job = script(tmp_path, f'{STUDENT}, teacher_model="Qwen/Qwen3-8B"', "lmbda=0.0, beta=0.0")
    assert (job.teacher, job.teacher_dtype, job.divergence) == ("Qwen/Qwen3-8B", "bf16", "forward_kl")
    assert (job.generated_by, job.prompt_length) == ("none", None)
    given = 'lmbda=0.0, seq_kd=True, teacher_model_init_kwargs={"torch_dtype": "float32"}'
    job = script(tmp_path, f'{STUDENT}, teacher_model="Qwen/Qwen3-8B"', given)
    assert (job.teacher_dtype, job.generated_by) == ("fp32", "teacher")
    assert script(tmp_path, f'{STUDENT}, teacher_model="Qwen/Qwen3-8B"', "seq_kd=True").generated_by == "both"


def test_yaml_and_an_older_version(tmp_path: Path) -> None:
    text = "model_name_or_path: Qwen/Qwen3-0.6B\nteacher_model_name_or_path: Qwen/Qwen3-4B\nbeta: 0.5\n"
    job = job_of(tmp_path, "a.yaml", text)
    assert (job.task, job.teacher, job.loss) == ("gkd", "Qwen/Qwen3-4B", "standard")
    assert job_of(tmp_path, "a.yaml", text, framework_version="1.4.0").loss == "sliced"
    with pytest.raises(VramplanError, match=r"GKDTrainer of TRL 0\.15\.0 is not modelled"):
        job_of(tmp_path, "a.yaml", text, framework_version="0.15.0")


@pytest.mark.parametrize(
    ("trainer", "options", "said"),
    [
        (STUDENT, "", "has no teacher_model"),
        (f'{STUDENT}, teacher_model=input("teacher")', "", "not known without running"),
        (f'{STUDENT}, teacher_model="Qwen/Qwen2.5-7B"', "", "the teacher model has vocab_size 152064"),
        (f'{STUDENT}, teacher_model="./mine"', "", "./mine"),
        (f'{STUDENT}, teacher_model="Qwen/Qwen3-4B"', "use_liger_kernel=True", "use_liger_kernel"),
        (f'{STUDENT}, teacher_model="Qwen/Qwen3-4B"', "packing=True", "packing"),
        (
            f'{STUDENT}, teacher_model="Qwen/Qwen3-4B"',
            'teacher_model_init_kwargs={"load_in_4bit": True}',
            "a quantized teacher is not modelled yet",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, trainer: str, options: str, said: str) -> None:
    with pytest.raises(VramplanError) as refused:
        script(tmp_path, trainer, options)
    assert said in str(refused.value)
