"""`check --exec`: a script that its user trusts is run, with stand-ins for what trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import cli
from vramplan.errors import ConfigError
from vramplan.planner import check

SHELL = """\
#!/bin/bash
BS=$(cat batch.txt)
export NPROC_PER_NODE=$(wc -l < gpus.txt)
swift sft --model Qwen/Qwen2.5-0.5B --tuner_type lora --torch_dtype bfloat16 --max_length 512 \\
    --per_device_train_batch_size $BS
touch it-ran
"""
PYTHON = """\
import json, os
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
conf = json.loads(os.popen("cat conf.json").read())
model = AutoModelForCausalLM.from_pretrained(conf["model"], torch_dtype="bfloat16")
args = TrainingArguments(output_dir="o", per_device_train_batch_size=conf["bs"], bf16=True)
Trainer(model=model, args=args, train_dataset=None).train()
open("it-ran", "w").close()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.sh").write_text(SHELL)
    (tmp_path / "train.py").write_text(PYTHON)
    (tmp_path / "batch.txt").write_text("3\n")
    (tmp_path / "gpus.txt").write_text("a\nb\n")
    (tmp_path / "conf.json").write_text(json.dumps({"model": "Qwen/Qwen2.5-0.5B", "bs": 2}))
    return tmp_path


@pytest.mark.parametrize("name", ["run.sh", "train.py"])
def test_without_it_nothing_runs(folder: Path, name: str) -> None:
    done = cli("check", str(folder / name), "--gpu", "rtx4090", "--seq-len", "512")
    assert done.returncode == 2
    assert "is not known without running the script" in done.stderr
    assert "--exec" in done.stderr
    assert not (folder / "it-ran").exists()


def test_a_shell_script(folder: Path) -> None:
    verdict = check.check(folder / "run.sh", "rtx4090", execute=True)
    job = verdict.estimate.job
    assert (job.micro_batch_size, job.num_gpus, job.method) == (3, 2, "lora")
    assert any("was run" in note.text for note in verdict.reading.notes)
    assert (folder / "it-ran").exists(), "everything else in it runs"


def test_a_python_script(folder: Path) -> None:
    done = cli("check", str(folder / "train.py"), "--gpu", "rtx4090", "--exec", "--seq-len", "512", "--json")
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["job"]
    assert (job["micro_batch_size"], job["dtype"], job["method"]) == (2, "bf16", "full")


def test_what_it_does_not_run(folder: Path) -> None:
    (folder / "a.yaml").write_text("model_name_or_path: a/b\nstage: sft\nfinetuning_type: lora\n")
    with pytest.raises(ConfigError, match="runs shell and Python scripts"):
        check.check(folder / "a.yaml", "rtx4090", execute=True)
    done = cli("check", str(folder / "run.sh"), "--gpu", "rtx4090", "--exec", "--fix")
    assert done.returncode == 2
    assert "goes without --fix" in done.stderr
