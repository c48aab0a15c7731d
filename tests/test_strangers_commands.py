"""Commands and scripts as people have them: behind programs that submit them, and with arguments by position."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.detect import from_path, from_words
from vramplan.planner.check import read

SCRIPT = """\
import sys
from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

name = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2.5-0.5B-Instruct"
length = 512
if len(sys.argv) > 2:
    length = int(sys.argv[2])
trainer = DPOTrainer(
    model=name,
    args=DPOConfig(output_dir="out", per_device_train_batch_size=3, max_length=length),
    train_dataset=load_dataset("json", data_files="pairs.jsonl", split="train"),
)
trainer.train()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "num_gpus"),
    [
        ("ray job submit --address http://127.0.0.1:8265 --working-dir . -- python train.py", 8),
        ("ray job submit --no-wait --entrypoint-num-gpus 4 -- accelerate launch --num_processes 4 train.py", 4),
        ('ray job submit --runtime-env-json=\'{"working_dir": "."}\' -- uv run --with trl python3 train.py', 8),
        ("uv run --extra train --with trl python train.py", 8),
        ("uv run --python python3.11 torchrun --nproc_per_node 2 train.py", 2),
        ("kubectl exec -it trainer -- accelerate launch --num_processes 2 train.py", 2),
        ("hf jobs uv run --flavor a100-large train.py", 8),
        ("python mason.py --cluster c --gpus 1 -- accelerate launch --num_processes 2 train.py", 2),
        (r"uv run python mason.py --gpus 1 -- source setup.sh \&\& accelerate launch --num_processes 3 train.py", 3),
        ("screen -dmS train bash -c 'accelerate launch --num_processes 2 train.py'", 2),
        ("tmux new-session -d -s train 'accelerate launch --num_processes 2 train.py'", 2),
    ],
)
def test_submitted(folder: Path, command: str, num_gpus: int) -> None:
    (folder / "run.sh").write_text(f"#!/bin/bash\nray start --head\n{command}\n")
    job = read(from_path(folder / "run.sh", None, {}), 8).job
    assert (job["task"], job["micro_batch_size"], job["num_gpus"]) == ("dpo", 3, num_gpus)


@pytest.mark.parametrize("command", ["ray job submit --help", "kubectl get pods", "hf download a/b", "ray stop"])
def test_what_submits_nothing(folder: Path, command: str) -> None:
    (folder / "run.sh").write_text(f"{command}\n")
    with pytest.raises(ConfigError, match="no training command"):
        from_path(folder / "run.sh", None, {})


def test_arguments_by_position(folder: Path) -> None:
    alone = read(from_path(folder / "train.py", None, {}), 1)
    assert (alone.model, alone.job["sequence_length"]) == ("Qwen/Qwen2.5-0.5B-Instruct", 512)
    (folder / "run.sh").write_text("python train.py Qwen/Qwen2.5-1.5B-Instruct 256\n")
    given = read(from_path(folder / "run.sh", None, {}), 1)
    assert (given.model, given.job["sequence_length"]) == ("Qwen/Qwen2.5-1.5B-Instruct", 256)
    (folder / "run.sh").write_text('python train.py "$MODEL"\n')
    with pytest.raises(ConfigError, match="not known without running"):
        read(from_path(folder / "run.sh", None, {}), 1)


def test_a_script_read_alone_does_not_end_for_want_of_arguments(folder: Path) -> None:
    usage = 'if len(sys.argv) < 2:\n    raise SystemExit("usage: train.py MODEL")\nname = '
    (folder / "train.py").write_text(SCRIPT.replace("name = ", usage))
    assert read(from_path(folder / "train.py", None, {}), 1).job["sequence_length"] == 512


def test_settings_without_effect_on_memory() -> None:
    words = ["trl", "sft", "--model_name_or_path", "Qwen/Qwen2.5-0.5B", "--dataset_name", "d", "--max_length", "512"]
    plain = read(from_words(words, None, {}), 1)
    noisy = read(from_words([*words, "--neftune_noise_alpha", "5", "--bf16_full_eval", "true"], None, {}), 1)
    assert noisy.job == plain.job


def test_a_revision_is_no_vision() -> None:
    words = ["python", "trl/scripts/sft.py", "--model_name_or_path", "Qwen/Qwen2.5-0.5B", "--dataset_name", "d"]
    found = read(from_words([*words, "--my_revision", "x"], None, {}), 1)
    assert [note.key for note in found.notes if note.kind == "unknown"] == ["my_revision"]
    with pytest.raises(UnsupportedError, match="my_vision"):
        read(from_words([*words, "--my_vision", "x"], None, {}), 1)


def test_keys_of_another_kind_of_training_say_how_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("model_name: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 8\nlearning_rate: 1e-6\n"
                    "num_generations: 8\nmax_completion_length: 512\nmax_prompt_length: 512\n")  # fmt: skip
    with pytest.raises(UnsupportedError, match="give framework=trl task=grpo"):
        from_path(path, None, {})


FROM_TEMPLATE = """\
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import (DPOConfig, DPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_kbit_device_map, get_peft_config,
                 get_quantization_config)

script_args, training_args, model_args = TrlParser((ScriptArguments, DPOConfig, ModelConfig)).parse_args_and_config()
quantization_config = get_quantization_config(model_args)
kwargs = dict(
    torch_dtype=model_args.torch_dtype,
    attn_implementation=model_args.attn_implementation,
    device_map=get_kbit_device_map() if quantization_config is not None else None,
    quantization_config=quantization_config,
)
model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, **kwargs)
peft_config = get_peft_config(model_args)
ref_model = None
if peft_config is None:
    ref_model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, **kwargs)
if script_args.ignore_bias_buffers:
    model._ddp_params_and_buffers_to_ignore = [n for n, b in model.named_buffers() if b.dtype == torch.bool]
trainer = DPOTrainer(model, ref_model, args=training_args, peft_config=peft_config,
                     train_dataset=load_dataset(script_args.dataset_name)["train"],
                     processing_class=AutoTokenizer.from_pretrained(model_args.model_name_or_path))
trainer.train()
"""
COMMAND = "python mine.py --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct --dataset_name d --max_length 512"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--torch_dtype bfloat16 --use_peft --lora_r 32", {"method": "lora", "lora_rank": 32, "dtype": "bf16"}),
        ("--torch_dtype bfloat16", {"method": "full", "dtype": "bf16", "reference": "model"}),
        ("--torch_dtype bfloat16 --use_peft --load_in_4bit", {"method": "lora", "quantize": "nf4", "lora_rank": 16}),
        ("--torch_dtype bfloat16 --use_peft --load_in_8bit true", {"method": "lora", "quantize": "int8"}),
        ("", {"method": "full", "dtype": "bf16"}),  # the checkpoint's own, as transformers 5 loads without a dtype
    ],
)
def test_a_script_made_from_trls_template(folder: Path, flags: str, expected: dict[str, object]) -> None:
    (folder / "mine.py").write_text(FROM_TEMPLATE)
    (folder / "run.sh").write_text(f"{COMMAND} {flags}\n")
    job = read(from_path(folder / "run.sh", None, {}), 1).job
    assert job["task"] == "dpo"
    assert {key: job.get(key) for key in expected} == expected


OWN_MODULE = """\
import torch

MODEL = {"name": "Qwen/Qwen2.5-0.5B-Instruct", "dtype": torch.bfloat16}
LENGTH = 256 * 2
ARGUMENTS = dict(output_dir="out", per_device_train_batch_size=3, max_length=LENGTH, max_completion_length=256)
SECRET = open("/etc/hostname").read()
"""
OF_OWN_MODULE = """\
from settings import ARGUMENTS, MODEL
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

ARGUMENTS.pop("max_completion_length")
model = AutoModelForCausalLM.from_pretrained(MODEL["name"], torch_dtype=MODEL["dtype"])
trainer = DPOTrainer(model=model, args=DPOConfig(**ARGUMENTS))
trainer.train()
"""


def test_constants_of_a_module_beside_the_script(folder: Path) -> None:
    (folder / "settings.py").write_text(OWN_MODULE)
    (folder / "mine.py").write_text(OF_OWN_MODULE)
    job = read(from_path(folder / "mine.py", None, {}), 1).job
    assert (job["micro_batch_size"], job["sequence_length"], job["dtype"]) == (3, 512, "bf16")
    (folder / "mine.py").write_text(OF_OWN_MODULE.replace("import ARGUMENTS, MODEL", "import *"))
    assert read(from_path(folder / "mine.py", None, {}), 1).job == job
    (folder / "mine.py").write_text(
        OF_OWN_MODULE.replace('"], torch', '"] + SECRET, torch').replace("MODEL\n", "MODEL, SECRET\n", 1)
    )
    with pytest.raises(ConfigError, match="not known without running"):
        read(from_path(folder / "mine.py", None, {}), 1)
    (folder / "settings.py").write_text("from mine import MODEL\nARGUMENTS = {}\n")
    with pytest.raises(ConfigError, match="not known without running"):
        read(from_path(folder / "mine.py", None, {}), 1)
    (folder / "settings.py").write_text("ARGUMENTS = {\n")
    with pytest.raises(ConfigError, match="not known without running"):
        read(from_path(folder / "mine.py", None, {}), 1)


def test_generation_of_tokens_that_only_a_run_tells(folder: Path) -> None:
    (folder / "mine.py").write_text(
        "from trl import GRPOConfig, GRPOTrainer\n"
        "args = GRPOConfig('o', max_completion_length=256, generation_kwargs={'pad_token_id': tokenizer.pad})\n"
        "GRPOTrainer(model='Qwen/Qwen2.5-0.5B', args=args, reward_funcs=[len]).train()\n"
    )
    assert read(from_path(folder / "mine.py", None, {}), 1).job["task"] == "grpo"
    text = (folder / "mine.py").read_text().replace("pad_token_id", "max_new_tokens")
    (folder / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match="generation_kwargs"):
        read(from_path(folder / "mine.py", None, {}), 1)


def test_a_module_is_followed_without_its_main(folder: Path) -> None:
    (folder / "settings.py").write_text(
        "ARGUMENTS = {'output_dir': 'out', 'per_device_train_batch_size': 3}\n"
        "def changed(arguments):\n    arguments['per_device_train_batch_size'] = 4\n"
        "if __name__ == '__main__':\n    ARGUMENTS['per_device_train_batch_size'] = 5\n"
    )
    text = "from settings import ARGUMENTS\nfrom trl import DPOConfig, DPOTrainer\n"
    text += "DPOTrainer(model='Qwen/Qwen2.5-0.5B-Instruct', args=DPOConfig(**ARGUMENTS)).train()\n"
    (folder / "mine.py").write_text(text)
    assert read(from_path(folder / "mine.py", None, {}), 1).job["micro_batch_size"] == 3
    with (folder / "settings.py").open("a") as file:
        file.write("changed(ARGUMENTS)\n")
    assert read(from_path(folder / "mine.py", None, {}), 1).job["micro_batch_size"] == 4
