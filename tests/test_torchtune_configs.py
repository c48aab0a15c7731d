"""Configurations that torchtune ships, by their names (vramplan/frameworks/readers/torchtune_configs.json)."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import pytest

from tests.torchtune_configs import FILE, as_text, folder, table
from vramplan.errors import ConfigError, UnknownNameError, UnsupportedError, VramplanError
from vramplan.frameworks.detect import from_words
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers.torchtune_configs import configs
from vramplan.planner.check import read

UNREAD = ("gemma", "phi", "vision")
"""Parts of the names of models whose layers are torchtune's own."""


def config_of(line: str, num_gpus: int = 1, version: str | None = None) -> ParsedConfig:
    return read(from_words(["tune", "run", *line.split()], None, {}), num_gpus, version)


def job_of(line: str) -> dict[str, Any]:
    return config_of(line).job


def test_the_table_is_that_of_the_installed_package() -> None:
    package = folder()
    if package is None or version("torchtune") != json.loads(FILE.read_text())["version"]:
        pytest.skip("torchtune 0.6.1 is not installed")
    assert FILE.read_text() == as_text(table(package))


def test_every_configuration_is_answered_or_refused_by_name() -> None:
    answered, refused = [], []
    for recipe, name in configs():
        gpus = "--nproc_per_node 8 " if recipe.endswith("distributed") else ""
        try:
            job_of(f"{gpus}{recipe} --config {name}")
            answered.append(name)
        except UnsupportedError as error:
            refused.append((name, str(error)))
    assert all(error.startswith(f"{name}: ") for name, error in refused)
    assert len(answered) >= 87
    assert not [name for name in answered if any(part in name for part in UNREAD)]
    assert {name for name, _ in REFUSED} <= {name for name, _ in refused}


REFUSED = (
    ("llama3_2_vision/11B_lora", "layers of its own"),
    ("phi4/14B_lora", "layers of its own"),
)


@pytest.mark.parametrize(("name", "message"), REFUSED)
def test_what_is_refused(name: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        job_of(f"--nproc_per_node 2 lora_finetune_distributed --config {name}")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "lora_finetune_single_device --config llama3_1/8B_lora_single_device",
            {"method": "lora", "micro_batch_size": 2, "gradient_accumulation_steps": 8, "lora_rank": 8, "num_gpus": 1,
             "checkpointing": "full", "optimizer": "adamw_torch_fused", "dtype": "bf16", "loss": "sections"},
        ),
        (
            "lora_finetune_single_device --config llama3_1/8B_lora_single_device batch_size=1 model.lora_rank=64"
            " tokenizer.max_seq_len=2048 optimizer=torch.optim.SGD",
            {"micro_batch_size": 1, "lora_rank": 64, "sequence_length": 2048, "optimizer": "sgd"},
        ),
        (
            "--nproc_per_node 2 lora_dpo_distributed --config llama3_1/8B_lora_dpo",
            {"task": "dpo", "num_gpus": 2, "sequence_length": 1024, "micro_batch_size": 4},
        ),
        ("--nproc_per_node 8 full_finetune_distributed --config llama3_1/70B_full", {"offload": "all"}),
        ("--nproc_per_node 4 full_finetune_distributed --config llama3_1/8B_full", {"strategy": "fsdp", "num_gpus": 4}),
        (
            "lora_finetune_single_device --config llama3_1/8B_lora_single_device ~optimizer.fused",
            {"optimizer": "adamw_torch"},
        ),
    ],
)  # fmt: skip
def test_names_are_answered(line: str, expected: dict[str, Any]) -> None:
    job = job_of(line)
    assert {name: job[name] for name in expected} == expected


def test_the_command_says_whose_settings_they_are() -> None:
    line = "lora_finetune_single_device --config llama3_2/1B_lora_single_device"
    config = config_of(line)
    assert config.model == "meta-llama/Llama-3.2-1B"
    assert [note.text for note in config.notes if note.key == "config"] == [
        "llama3_2/1B_lora_single_device, as torchtune 0.6.1 ships it"
    ]
    older = config_of(line, version="0.5.0")
    assert [note.kind for note in older.notes if note.key == "config"] == ["doubt"]


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ("lora_finetune_single_device --config llama3_1/8B_lora_singel", UnknownNameError, "8B_lora_single_device"),
        ("lora_finetune_single_device --config llama3_1/8B_full", ConfigError, "does not go with a model"),
        ("full_finetune_distributed --config llama3_1/8B_full", ConfigError, "say how many"),
        ("lora_dpo_single_device --config llama3/8B_lora_single_device", VramplanError, "is no loss of lora_dpo"),
        (
            "--nproc_per_node 2 lora_finetune_single_device --config llama3_1/8B_lora_single_device",
            ConfigError,
            "or run lora_finetune_distributed",
        ),
    ],
)
def test_names_that_do_not_fit(line: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        job_of(line)


def test_a_section_takes_no_text() -> None:
    words = ["tune", "run", "lora_finetune_single_device", "--config", "llama3_2/1B_lora_single_device"]
    found = from_words(words, None, {}).with_settings({"optimizer": "torch.optim.SGD"})
    with pytest.raises(ConfigError, match=r"write optimizer\._component_=torch\.optim\.SGD"):
        read(found, 1)
