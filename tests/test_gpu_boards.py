"""GPUs whose name as typed leaves open which board, or how many of them, is meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vramplan
from tests.helpers import cli
from vramplan.errors import ConfigError
from vramplan.inputs.catalog import all_gpus
from vramplan.inputs.load import load_gpu

BOARDS = {
    "a100": "a100: the 40 GB board was taken; a100-80gb is the other",
    "V100": "V100: the 16 GB board was taken; v100-32gb is the other",
    "3080": "3080: the 10 GB board was taken; rtx3080-12gb is the other",
    "NVIDIA GeForce RTX 3080": "NVIDIA GeForce RTX 3080: the 10 GB board was taken; rtx3080-12gb is the other",
    "4060ti": "4060ti: the 8 GB board was taken; rtx4060ti-16gb is the other",
    "rtx5060ti": "rtx5060ti: the 16 GB board was taken; rtx5060ti-8gb is the other",
    "h100": "h100: the 80 GB board was taken; h100-nvl is the other",
}
LINES = {
    "suggest": ("qwen2.5-0.5b", "--global-batch", "4", "--num-gpus", "1"),
    "estimate": ("qwen2.5-0.5b",),
    "images": ("qwen2-vl-2b-instruct", "--sizes", "336x336"),
    "adapt": ("plan", "qwen2.5-0.5b", "--global-batch", "4", "--largest-global-batch", "8"),
    "compare": ("qwen2.5-0.5b", "qwen2.5-1.5b"),
    "check": (),
}


@pytest.mark.parametrize("name", BOARDS)
def test_the_board_that_was_taken_is_said(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.platform_note == BOARDS[name]
    assert BOARDS[name] in vramplan.estimate("qwen2.5-0.5b", name).notes
    other = BOARDS[name].split("; ")[1].split()[0]
    assert load_gpu(other).driver_total_bytes != gpu.driver_total_bytes
    assert not load_gpu(other).platform_note


def test_names_of_one_board_have_no_note() -> None:
    for gpu in all_gpus():
        noted = load_gpu(gpu.name).platform_note  # rtx2060 is a board, and what others begin with
        assert not noted or gpu.name == "rtx2060", gpu.name
    for name in ("4090", "a100-40gb", "A100 80GB PCIe", "4070 ti", "a10", "l4", "h200"):
        assert not load_gpu(name).platform_note


def test_notes_of_the_board_and_of_the_platform_stand_together() -> None:
    note = load_gpu("v100", "windows").platform_note
    assert note.startswith(BOARDS["V100"].replace("V100:", "v100:"))
    assert "left to Windows" in note


@pytest.mark.parametrize("command", LINES)
def test_every_command_says_it(command: str, tmp_path: Path) -> None:
    words = LINES[command]
    if command == "check":
        (tmp_path / "train.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ncutoff_len: 512\n")
        words = (str(tmp_path / "train.yaml"),)
    text = cli(command, *words, "--gpu", "a100")
    assert " ".join(BOARDS["a100"].split()) in " ".join(text.stdout.split()), text.stderr
    answer = cli(command, *words, "--gpu", "a100", "--json")
    assert BOARDS["a100"] in json.dumps(json.loads(answer.stdout))


@pytest.mark.parametrize("name", ["2x4090", "4090x2", "2 x rtx4090", "RTX 4090 × 2"])
def test_a_number_of_gpus_is_an_option_of_its_own(name: str) -> None:
    with pytest.raises(ConfigError, match="give gpu=rtx4090 num_gpus=2"):
        load_gpu(name)
    assert "give --gpu rtx4090 --num-gpus 2" in cli("estimate", "qwen2.5-0.5b", "--gpu", name).stderr
