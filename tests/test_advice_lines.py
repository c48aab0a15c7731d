"""Changes that `check` proposes: the settings that change alone, and where they stand in a script."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

import vramplan
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers.trl_grpo import NAMES
from vramplan.frameworks.settings import ConfigValue
from vramplan.render.check import answer
from vramplan.render.script_lines import with_line
from vramplan.render.terminal import SafeConsole
from vramplan.render.ways_out import ways_out

SCRIPT = """from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

args = GRPOConfig(
    output_dir="out",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    num_generations=8,
    max_completion_length=1024,
    use_vllm=True,
    vllm_gpu_memory_utilization=0.4,
    bf16=True,
    gradient_checkpointing=True,
)
trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-3B-Instruct",
    reward_funcs=lambda completions, **_: [0.0] * len(completions),
    args=args,
    train_dataset=load_dataset("trl-lib/DeepMath-103K", split="train"),
    peft_config=LoraConfig(r=16, target_modules=["q_proj", "v_proj"]),
)
trainer.train()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "grpo.py"
    path.write_text(SCRIPT)
    return path


def test_a_change_repeats_no_setting_that_stays(script: Path) -> None:
    verdict = vramplan.check(script, "rtx4090", num_gpus=1)
    (_, settings), *_ = ways_out(verdict)
    assert settings[:2] == ['vllm_mode="colocate"', "vllm_enable_sleep_mode=True"]  # use_vllm=True stands there


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        ({}, ["use_vllm: true", "vllm_mode: colocate", "vllm_enable_sleep_mode: true"]),
        ({"use_vllm": True, "vllm_mode": "colocate"}, ["vllm_enable_sleep_mode: true"]),
        ({"use_vllm": "True", "vllm_mode": "server"}, ["vllm_mode: colocate", "vllm_enable_sleep_mode: true"]),
        (
            {"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True},  # another key undoes it
            ["use_vllm: true", "vllm_mode: colocate", "vllm_enable_sleep_mode: true"],
        ),
    ],
)
def test_settings_that_stand_there_are_left_out(written: dict[str, object], lines: list[str]) -> None:
    settings = {key: ConfigValue(value, "") for key, value in written.items()}
    config = ParsedConfig("trl", "1.16.0", "", {}, NAMES, settings=settings)
    assert config.say({"generate_with": "vllm_sleep"}) == lines


# -- lines of a script -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (["bf16=False"], "bf16=False  # line 13"),
        (['optim="sgd"'], 'optim="sgd"  # add to GRPOConfig(...), line 5'),
        (["gradient_accumulation_steps=32", "bf16=False"], "gradient_accumulation_steps=32  bf16=False  # lines 8, 13"),
        (["bf16=False", 'optim="sgd"'], 'bf16=False  optim="sgd"'),  # no room for both
        (["lora_dropout=0.1"], "lora_dropout=0.1  # add to LoraConfig(...), line 21"),
        (["lora_r=8"], "lora_r=8  # line 21"),
        (["dtype=torch.bfloat16"], "dtype=torch.bfloat16"),  # the model's, which the trainer loads
        (["PYTORCH_ALLOC_CONF=expandable_segments:True in the environment"],) * 2,
    ],
)
def test_settings_have_the_line_of_the_script(script: Path, settings: list[str], line: list[str] | str) -> None:
    reading = vramplan.check(script, "h200-sxm", num_gpus=1, sequence_length=2048, look_further=False).reading
    assert with_line(reading, settings) == ("  ".join(line) if isinstance(line, list) else line)


def test_two_constructors_are_not_told_apart(script: Path) -> None:
    script.write_text(SCRIPT.replace("trainer = ", "other = GRPOConfig(output_dir='b')\ntrainer = "))
    reading = vramplan.check(script, "h200-sxm", num_gpus=1, sequence_length=2048, look_further=False).reading
    assert with_line(reading, ['optim="sgd"']) == 'optim="sgd"'


def test_a_configuration_file_has_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "swift.yaml"
    path.write_text("model: Qwen/Qwen2.5-0.5B-Instruct\ntuner_type: lora\nmax_length: 512\n")
    reading = vramplan.check(path, "h200-sxm", framework="ms-swift", num_gpus=1, look_further=False).reading
    assert with_line(reading, ["max_length: 256"]) == "max_length: 256"


def test_check_prints_the_lines(script: Path) -> None:
    console = SafeConsole(width=80, file=StringIO())
    with console.capture() as shown:
        console.print(answer(vramplan.check(script, "rtx4090", num_gpus=1)))
    lines = [line.strip("│ ") for line in shown.get().splitlines()]
    assert 'vllm_mode="colocate"  # add to GRPOConfig(...), line 5' in lines


# -- contrastive losses ------------------------------------------------------------------------------------------------

CACHED = """from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import CachedMultipleNegativesRankingLoss

model = SentenceTransformer("BAAI/bge-m3")
model.max_seq_length = 256
loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=64)
args = SentenceTransformerTrainingArguments(output_dir="out", per_device_train_batch_size=256, bf16=True)
trainer = SentenceTransformerTrainer(
    model=model, args=args, train_dataset=load_dataset("sentence-transformers/all-nli", "pair")["train"], loss=loss
)
trainer.train()
"""


def test_a_cached_loss_runs_fewer_texts_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "embed.py"
    path.write_text(CACHED)
    verdict = vramplan.check(path, "rtx4090", num_gpus=1)
    assert not verdict.fits
    (title, settings), *others = ways_out(verdict)
    assert title.startswith("Same micro-batch and negatives, fits at")
    size = verdict.advice[0].update["mini_batch_size"]
    assert settings == [f"mini_batch_size={size}"]
    assert with_line(verdict.reading, settings) == f"mini_batch_size={size}  # line 7"
    assert any("a smaller mini_batch_size keeps them" in text for text, _ in others)
    changed, doubled = (
        vramplan.check(path, "rtx4090", num_gpus=1, settings={"mini_batch_size": str(other)})
        for other in (size, 2 * size)
    )
    assert (changed.fits, changed.need_bytes) == (True, verdict.advice[0].device_total_bytes)
    assert not doubled.fits
    path.write_text(CACHED.replace(", mini_batch_size=64", ""))
    reading = vramplan.check(path, "rtx4090", num_gpus=1, look_further=False).reading
    assert with_line(reading, settings) == f"mini_batch_size={size}  # add to the loss, line 7"
    assert with_line(reading, ["max_seq_length=128"]) == "max_seq_length=128  # line 6"
