"""Names as people type them, in the command line and in Python."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

import vramplan
from tests.helpers import cli
from vramplan.cli.commands import COMMANDS, function_of
from vramplan.cli.completion import gpu_names
from vramplan.cli.options import spell_flag
from vramplan.cli.parameters import declared, parameter_of
from vramplan.cli.parse import parse
from vramplan.cli.usual_options import as_declared
from vramplan.errors import ConfigError, UnknownNameError, as_python
from vramplan.inputs.catalog import all_gpus, find_gpu, known_model_names
from vramplan.inputs.gpu_by_size import gpu_of_size
from vramplan.inputs.job import Job
from vramplan.inputs.load import load_gpu, load_model, load_named_model
from vramplan.inputs.usual_names import SAME, SWITCHES, VALUES, with_own_names

BEFORE = "qwen2.5-7b --gpu 4090"
LINES = {
    "suggest": {
        "--global-batch 16 --max-length 4k": "--global-batch 16 --seq-len 4096",
        "--global_batch_size=16 lora_r=16 seq_len=2048": "--global-batch 16 --lora-rank 16 --seq-len 2048",
        "--batch-size 16 --qlora": "--global-batch 16 --method qlora",
        "--global-batch 16 --load-in-4bit": "--global-batch 16 --quantize nf4",
        "--global-batch 16 --gradient-checkpointing false": "--global-batch 16 --checkpointing none",
        "--global-batch 16 --gradient_checkpointing": "--global-batch 16 --checkpointing full",
        "--global-batch 16 --use-liger-kernel true": "--global-batch 16 --loss liger --fused-kernels all",
        "--global-batch 16 --gpus 2 --zero 3": "--global-batch 16 --num-gpus 2 --strategy zero3",
        "--global-batch 16 --gpus 2 --deepspeed zero2": "--global-batch 16 --num-gpus 2 --strategy zero2",
        "--global-batch 16 --attn-implementation flash_attention_2": "--global-batch 16 --attention flash",
        "--global-batch 16 --samples 52k --seq-len 1.5k": "--global-batch 16 --samples 52000 --seq-len 1536",
        "--global-batch 16 --optim adamw_8bit": "--global-batch 16 --optimizer adamw_8bit",
    },
    "estimate": {
        "--batch-size 2 --gas 8": "--micro-batch 2 --accumulation 8",
        "--per_device_train_batch_size=2": "--micro-batch 2",
        "--no-gradient-checkpointing": "--checkpointing none",
        "--use_lora false": "--method full",
        "--torch_dtype bfloat16 --target_modules q_proj,v_proj": "--dtype bf16 --lora-targets q_proj,v_proj",
    },
}


def parameters_of(command: str) -> list:
    return [*map(parameter_of, declared(function_of(command)).values())]


@pytest.mark.parametrize(("command", "typed"), [(command, line) for command, lines in LINES.items() for line in lines])
def test_lines_as_people_type_them(command: str, typed: str) -> None:
    own = parse(parameters_of(command), f"{BEFORE} {LINES[command][typed]}".split())
    assert own is not None
    assert parse(parameters_of(command), f"{BEFORE} {typed}".split()) is None
    words = as_declared(f"{BEFORE} {typed}".split(), parameters_of(command))
    assert parse(parameters_of(command), words) == own


def test_the_model_and_the_gpu_by_other_options() -> None:
    words = as_declared(["--model_name_or_path", "qwen2.5-7b", "--gpus", "4090", "--bs", "8"], parameters_of("suggest"))
    assert words == ["qwen2.5-7b", "--gpu", "4090", "--global-batch", "8"]


@pytest.mark.parametrize("command", COMMANDS)
def test_own_spellings_stay(command: str) -> None:
    parameters = parameters_of(command)
    words = [text for parameter in parameters for name in parameter.names for text in (name, "1")]
    flags = {name for parameter in parameters if parameter.type is bool for name in parameter.names}
    words = [word for word, before in zip(words, ["", *words], strict=False) if before not in flags]
    assert as_declared(words, parameters) == words


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("estimate m --gpu x --bf16", "--dtype (how weights are stored) or --autocast"),
        (
            "suggest m --gpu x --per-device-train-batch-size 2",
            "what suggest looks for; `vramplan estimate` takes",
        ),
    ],
)
def test_names_that_are_refused(line: str, message: str) -> None:
    command, *words = line.split()
    with pytest.raises(ConfigError) as error:
        as_declared(words, parameters_of(command))
    assert message in error.value.spelled(spell_flag)


def test_words_after_a_command_are_its_own() -> None:
    words = ["--gpu", "4090", "--", "swift", "sft", "--lora_r", "8", "max_length=4k"]
    assert as_declared(words, parameters_of("check")) == words


def test_tables_name_settings_that_exist() -> None:
    options = {name for command in COMMANDS for parameter in parameters_of(command) for name in parameter.names}
    fields = {*SAME.values(), *(field for values in SWITCHES.values() for own in values.values() for field in own)}
    assert {field for field in fields - {"model"} if spell_flag(field, "") not in options} == set()
    assert not {name for name, field in SAME.items() if name in Job.model_fields and name != field}
    for (field, _), value in VALUES.items():
        if field not in ("lora_targets", "strategy"):  # any names of layers; checked with the number of GPUs
            assert getattr(Job.model_validate({"quantize": "nf4"} | {field: value}), field) == value


def test_settings_in_python() -> None:
    usual = vramplan.suggest(
        "qwen2.5-0.5b", gpu="3060", global_batch_size=8, lora_r=16, seq_len=1024, load_in_4bit=True, advice=False
    )
    own = vramplan.suggest(
        "qwen2.5-0.5b", "rtx3060", 8, lora_rank=16, sequence_length=1024, quantize="nf4", advice=False
    )
    assert usual == own
    with pytest.raises(ConfigError, match="lora_rank is given twice"):
        vramplan.estimate("qwen2.5-0.5b", "rtx3060", lora_r=16, lora_rank=8)
    with pytest.raises(ConfigError, match="bf16 may mean two settings: dtype"):
        vramplan.estimate("qwen2.5-0.5b", "rtx3060", bf16=True)
    assert with_own_names({"lora_r": 8, "lora_rank": 8}) == {"lora_rank": 8}
    assert as_python("sequence_length", "1") == "sequence_length=1"


def test_a_batch_size_is_what_the_function_takes() -> None:
    estimate = vramplan.estimate("qwen2.5-0.5b", "rtx3060", batch_size=2, seq_len=512)
    assert estimate.job.micro_batch_size == 2
    search = vramplan.suggest("qwen2.5-0.5b", "rtx3060", batch_size=4, seq_len=512, advice=False)
    assert search.global_batch_size == 4
    with pytest.raises(ConfigError, match="batch_size may mean two settings"):
        vramplan.report("qwen2.5-0.5b", "rtx3060", batch_size=4)


def test_fixes_and_tables_take_the_same_names(tmp_path: Path) -> None:
    config = tmp_path / "train.yaml"
    config.write_text(
        "base_model: Qwen/Qwen2.5-0.5B\nadapter: lora\nlora_r: 8\nlora_target_linear: true\nsequence_len: 2048\n"
    )
    fixed = vramplan.fix(config, "rtx3060", max_length="1k", num_gpus=1)
    own = vramplan.fix(config, "rtx3060", sequence_length=1024, num_gpus=1)
    assert fixed.after.estimate == own.after.estimate
    assert own.after.estimate.job.sequence_length == 1024
    table = vramplan.table(["qwen2.5-0.5b"], ["rtx3060"], lora_r=16, micro_batch=2, show="memory", seq_lens=[512])
    own_table = vramplan.table(
        ["qwen2.5-0.5b"], ["rtx3060"], lora_rank=16, micro_batch=2, show="memory", seq_lens=[512]
    )
    assert table.rows == own_table.rows


@pytest.mark.parametrize("length", ["4k", "4,096", "4_096", "4096", 4096])
def test_numbers_as_text_in_python(length: str | int) -> None:
    assert vramplan.estimate("qwen2.5-0.5b", "rtx3060", seq_len=length).job.sequence_length == 4096
    assert vramplan.estimate("qwen2.5-0.5b", "rtx3060", sequence_length=length).job.sequence_length == 4096


def test_no_length_is_guessed() -> None:
    for length in ("4,09", "4.096", "long"):
        with pytest.raises(ConfigError, match="sequence_length="):
            vramplan.estimate("qwen2.5-0.5b", "rtx3060", seq_len=length)


def test_settings_that_do_not_change_memory() -> None:
    without = vramplan.estimate("qwen2.5-0.5b", "rtx3060")
    with pytest.warns(UserWarning, match="lora_alpha does not change memory") as warned:
        assert vramplan.estimate("qwen2.5-0.5b", "rtx3060", lora_alpha=32) == without
    assert warned[0].filename == __file__
    line = ("estimate", "qwen2.5-0.5b", "--gpu", "rtx3060", "--json")
    answer = cli(*line, "--lora-alpha", "32", "--learning-rate=1e-4", "lr=2e-4")
    assert answer.stdout == cli(*line).stdout
    for name in ("--lora-alpha", "--learning-rate", "--lr"):
        assert f"{name} does not change memory" in answer.stderr


@pytest.mark.parametrize(
    ("typed", "strategy"),
    [("--zero3", "zero3"), ("--zero2", "zero2"), ("--fsdp", "fsdp"), ("--deepspeed zero3", "zero3")],
)
def test_strategies_as_people_type_them(typed: str, strategy: str) -> None:
    words = as_declared(f"{BEFORE} --num-gpus 2 {typed} --seq-len 4,096".split(), parameters_of("estimate"))
    assert words == [*BEFORE.split(), "--num-gpus", "2", "--strategy", strategy, "--seq-len", "4096"]


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("llama3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("llama 3.1 8b", "meta-llama/Llama-3.1-8B"),
        ("mistral-nemo", "mistralai/Mistral-Nemo-Base-2407"),
        ("gemma3-4b", "google/gemma-3-4b-it"),
    ],
)
def test_models_as_people_type_them(typed: str, name: str) -> None:
    assert load_model(typed).name == name
    with pytest.raises(UnknownNameError):  # a name in a file has to be exact
        load_named_model(typed)


def test_a_model_is_not_taken_for_another() -> None:
    for name in known_model_names():
        assert load_model(name).name.lower().endswith(name.lower())
    for name, first in (("mistral-7b", "Mistral-7B-v0.3"), ("mixtral", "Mixtral-8x7B"), ("bert-base", "bert-base-")):
        with pytest.raises(UnknownNameError, match=f"did you mean {first}"):
            load_model(name)


@pytest.mark.parametrize(("size", "text"), [*product((8, 12, 16, 24, 32, 48, 80, 96), ("{}GB", "{} gib", "{}G"))])
def test_a_size_has_no_more_than_any_gpu_of_that_size(size: int, text: str) -> None:
    gpu = load_gpu(text.format(size))
    same = [
        one for one in all_gpus() if one.capability >= (8, 0) and 0.99 * size < one.driver_total_bytes / 2**30 <= size
    ]
    assert same
    assert gpu.cuda_total_bytes == min(one.cuda_total_bytes for one in same)
    assert gpu.multiprocessors == max(one.multiprocessors or 0 for one in same)


def test_sizes_that_no_gpu_has() -> None:
    assert 35.2 < gpu_of_size("36GB").cuda_total_bytes / 2**30 < 36
    assert "scaled" in gpu_of_size("36GB").platform_note
    assert "L4" in gpu_of_size("24GB").platform_note or "A10" in gpu_of_size("24GB").platform_note
    estimate = vramplan.estimate("qwen2.5-0.5b", "24GB")
    assert estimate.step_time is None
    for text in ("0GB", "5000GB"):
        with pytest.raises(ConfigError, match="expected 1 to 1,024 GB"):
            load_gpu(text)
    with pytest.raises(UnknownNameError):
        load_gpu("GB")
    assert find_gpu("gb200").name == "gb200"


def test_a_configuration_in_the_place_of_a_model(tmp_path: Path) -> None:
    for name in ("train.yaml", "train.sh", "train.py", "train.toml"):
        (tmp_path / name).write_text("model_name_or_path: m\n")
        for command in (("suggest", "--global-batch", "8"), ("estimate",)):
            done = cli(*command, str(tmp_path / name), "--gpu", "rtx3060")
            assert done.returncode == 2
            assert f"`vramplan check {tmp_path / name}` reads training configurations" in done.stderr
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8}')
    assert "`vramplan check` reads" in cli("estimate", str(tmp_path / "ds.json"), "--gpu", "rtx3060").stderr


@pytest.mark.parametrize("kernel", ["fa9", "xformers"])
def test_an_attention_that_is_not_known_names_those_that_are(kernel: str, tmp_path: Path) -> None:
    config = tmp_path / "train.yaml"
    config.write_text(f"model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ncutoff_len: 512\nflash_attn: {kernel}\n")
    error = cli("check", str(config), "--gpu", "rtx3060").stderr
    assert f"flash_attn: {kernel} is not modelled; modelled: auto, disabled" in error
    assert "fa2" in error


def test_gpus_are_completed_by_their_numbers() -> None:
    found = dict(gpu_names("40"))
    assert found["4090"] == "RTX 4090"
    assert all(load_gpu(name).title == title for name, title in found.items())
    assert dict(gpu_names("rtx3060,a100-4"))["rtx3060,a100-40gb-sxm"] == "A100 40GB SXM"
    assert all(load_gpu(name).name.startswith("rtx") for name, _ in gpu_names("3"))


@pytest.mark.parametrize("command", ["suggest", "estimate"])
def test_a_data_set_belongs_to_check(command: str) -> None:
    words = [command, "Qwen/Qwen2.5-0.5B", "--gpu", "rtx4090", "--dataset", "data.jsonl"]
    done = cli(*words, *(["--global-batch", "16"] if command == "suggest" else []))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "--lengths" in done.stderr
    assert "vramplan check FILE --dataset" in done.stderr
