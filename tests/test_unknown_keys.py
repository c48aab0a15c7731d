"""Keys that a framework does not know: an error where it stops at them, a note where it goes on."""

from __future__ import annotations

import pytest

from vramplan.errors import ConfigError, setting
from vramplan.frameworks.detect import from_line
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.planner.read_config import read

MODEL = "Qwen/Qwen2.5-7B"
STOPS = {
    "llamafactory": f"llamafactory-cli train --stage sft --model_name_or_path {MODEL} --finetuning_type lora",
    "ms-swift": f"swift sft --model {MODEL} --tuner_type lora",
    "openrlhf": f"python -m openrlhf.cli.train_sft --pretrain {MODEL} --micro_train_batch_size 1",
    "trl": f"trl sft --model_name_or_path {MODEL} --dataset_name trl-lib/Capybara",
    "verl": f"torchrun --nproc_per_node=2 -m verl.trainer.sft_trainer model.path={MODEL}",
}
GOES_ON = {
    "llamafactory": f"ALLOW_EXTRA_ARGS=1 {STOPS['llamafactory']} --max_sampels 5",
    "ms-swift": f"{STOPS['ms-swift']} --max_sampels 5 --ignore_args_error true",
    "trl": f"accelerate launch trl/scripts/sft.py --model_name_or_path {MODEL} --max_sampels 5",
    "verl": f"{STOPS['verl']} +data.max_sampels=5",
    "axolotl": f"axolotl train --base_model {MODEL} --adapter lora --lora_r 8 --lora_alpha 16"
    " --lora_target_linear true --micro-batch-size 1 --max_sampels 5",
}


def reading(line: str) -> ParsedConfig:
    return read(from_line(line, None, {}), 1)


@pytest.mark.parametrize("name", STOPS)
def test_all_keys_at_which_it_stops_are_named_with_a_way_forward(name: str) -> None:
    """(LLaMA-Factory 0.9.5, hparams/parser.py; ms-swift 4.6, pipelines/base.py; OpenRLHF, cli; TRL 1.16, TrlParser.)"""
    keys = ("data.max_sampels", "data.colour") if name == "verl" else ("max_sampels", "colour")
    words = [f"{key}=5" if name == "verl" else f"--{key} 5" for key in keys]
    assert reading(STOPS[name]).framework == name
    with pytest.raises(ConfigError, match=f"{name} stops at keys that it does not know") as stopped:
        reading(" ".join([STOPS[name], *words]))
    assert all(setting("set", f"{key}=") in stopped.value.text for key in keys)


@pytest.mark.parametrize("name", GOES_ON)
def test_it_is_a_note_where_the_run_goes_on(name: str) -> None:
    notes = [note for note in reading(GOES_ON[name]).notes if "max_sampels" in note.key]
    assert [note.kind for note in notes] == ["unknown"]


def test_many_keys_are_counted() -> None:
    line = " ".join([STOPS["openrlhf"], *(f"--colour{number} 1" for number in range(9))])
    with pytest.raises(ConfigError, match="3 more") as stopped:
        reading(line)
    assert all(setting("set", f"colour{number}=") in stopped.value.text for number in range(9))
