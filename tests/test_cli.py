"""The command line: exit codes, one-line errors, the JSON contract, and what a terminal shows."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT, cli, cli_json, cli_process, typer_command
from vramplan.cli import main
from vramplan.cli.commands import command_of
from vramplan.cli.options import JOB_FLAGS, OTHER_FLAGS, spell_flag
from vramplan.cli.panels import PANELS, TASKS
from vramplan.inputs.catalog import all_gpus
from vramplan.inputs.job import Job

MAIN = ["suggest", "Qwen/Qwen2.5-7B-Instruct", "--gpu", "rtx4090d", "--global-batch", "16"]


def test_the_first_command() -> None:
    """As a process of its own, and the same in this one, as the other tests ask."""
    asked = [*MAIN, "--method", "lora", "--lora-rank", "8", "--seq-len", "2048"]
    done, here = cli_process(*asked), cli(*asked)
    assert (done.returncode, done.stdout, done.stderr) == (here.returncode, here.stdout, here.stderr)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "FITS" in lines[1], "the verdict comes first"
    assert "per_device_train_batch_size 1" in done.stdout
    assert "gradient_accumulation_steps 16" in done.stdout
    assert "Assumes LoRA rank 8, bf16, 2,048 tokens; -v lists all" in lines
    assert "on all linear layers" not in done.stdout
    verbose = cli(*MAIN, "-v").stdout
    assert verbose.startswith("\n".join(lines[:7]))
    assert "7.616 B parameters, and 20.19 M in adapters" in verbose
    assert "LoRA rank 8 on all linear layers" in verbose
    assert max(len(line) for line in verbose.splitlines()) <= 80


def test_nothing_fits_is_exit_code_one() -> None:
    done = cli("suggest", "llama-3.1-8b", "--gpu", "a100-80gb", "--num-gpus", "8", "--method", "full",
               "--seq-len", "8192", "--global-batch", "128")  # fmt: skip
    assert done.returncode == 1
    assert "DOES NOT FIT" in done.stdout
    assert "--method lora" in done.stdout
    assert cli("estimate", "llama-3.1-70b", "--gpu", "rtx3060").returncode == 1


def test_estimate_explains() -> None:
    done = cli("estimate", "qwen2.5-0.5b", "--gpu", "rtx3060", "--micro-batch", "2", "--explain")
    assert done.returncode == 0, done.stderr
    assert "layers.*.mlp.down_proj.weight" in done.stdout
    assert "896 x 4864 bf16" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_suggest_json() -> None:
    found = cli_json(*MAIN)
    assert set(found) >= {"plans", "recommended", "max_micro_batch_size", "rejected", "advice"}
    wanted = {
        "micro_batch_size",
        "gradient_accumulation_steps",
        "data_parallel",
        "global_batch_size",
        "peak_reserved_bytes",
        "device_total_bytes",
        "headroom_bytes",
        "fits",
        "relative_step_time",
    }
    for plan in found["plans"]:
        assert set(plan) >= wanted
        assert plan["fits"]
        product = plan["micro_batch_size"] * plan["gradient_accumulation_steps"] * plan["data_parallel"]
        assert product == plan["global_batch_size"] == 16
    assert found["recommended"] in found["plans"]


def test_estimate_json() -> None:
    found = cli_json("estimate", "Qwen/Qwen2.5-7B-Instruct", "--gpu", "a100-80gb", "--loop", "plain")
    assert set(found) >= {
        "model",
        "by",
        "micro_batch_size",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "device_total_bytes",
        "fits",
        "card",
        "phases",
        "terms",
        "num_parameters",
        "num_trainable_parameters",
        "assumptions",
    }
    assert set(found["phases"]) == {"loaded", "forward", "backward", "optimizer", "eval"}
    assert sum(term["bytes"] for term in found["terms"]) == found["device_total_bytes"]
    assert found["by"] == "analytic"
    assert found["num_parameters"] == 7_615_616_512
    assert found["peak_allocated_bytes"] == pytest.approx(19_652_256_768, rel=0.005)


def test_lists() -> None:
    assert len(cli_json("models")) >= 110
    assert len(cli_json("gpus")) == len(all_gpus())
    assert [one["name"] for one in cli_json("gpus", "4090")] == ["rtx4090", "rtx4090d", "rtx4090-laptop"]
    assert "meta-llama/Llama-3.1-8B" in cli("models", "llama-3.1").stdout
    for command in ("models", "gpus"):
        assert max(len(line) for line in cli(command).stdout.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["suggest", "nosuch", "--gpu", "h100", "--global-batch", "8"], "unknown model 'nosuch'"),
        (["suggest", "qwen2.5-7b", "--gpu", "h10", "--global-batch", "8"], "did you mean h100"),
        (
            ["suggest", "qwen2.5-7b", "--gpu", "h100", "--global-batch", "8", "--optimizer", "adamm"],
            "did you mean adamw",
        ),
        (["suggest", "qwen2.5-7b", "--gpu", "h100", "--global-batch", "0"], "--global-batch 0"),
        (["suggest", "qwen2.5-7b", "--gpu", "h100", "--global-batch", "-3"], "--global-batch -3"),
        (["suggest", "qwen2.5-7b", "--gpu", "h100", "--global-batch", "x"], "--global-batch"),
        (["suggest", "qwen2.5-7b", "--gpu", "h100"], "give --global-batch"),
        (["suggest", "qwen2.5-7b", "--gpu", "h100", "--global-batch", "9", "--num-gpus", "2"], "8 or 10"),
        (["suggest", "qwen2.5-7b", "--gpu", "h100", "--global-batch", "8", "--seq-len", "0"], "--seq-len 0"),
        (["estimate", "qwen2.5-7b", "--gpu", "h100", "--seq-len", "999999999999"], "--seq-len 999999999999"),
        (["estimate", "qwen2.5-7b", "--gpu", "h100", "--micro-batch", "-1"], "--micro-batch -1"),
        (["estimate", "qwen2.5-7b", "--gpu", "h100", "--lora-rank", "9999"], "k_proj is only 512 wide"),
        (["estimate", "qwen2.5-7b", "--gpu", "h100", "--lora-targets", "q_prj"], "did you mean q_proj"),
        (["estimate", "qwen2.5-7b", "--gpu", "v100", "--dtype", "bf16"], "run --dtype fp16"),
        (["estimate", "qwen2.5-7b", "--gpu", "t4", "--attention", "flash"], "compute capability 8.0"),
        (["estimate", "qwen2.5-7b", "--gpu", "h100", "--dtype", "int3"], "--dtype 'int3'"),
        (["estimate", "qwen2.5-7b", "--gpu", "h100", "--dtype", "fp8"], "fp8 is not modelled yet"),
        (["estimate", "qwen2.5-7b", "--gpu", "rtx3090", "--dtype", "fp8"], "no fp8 units; run --dtype bf16"),
        (["estimate", "qwen2.5-7b", "--gpu", "h100", "--quantize", "int8", "--method", "full"], "cannot train"),
        (["estimate", "qwen2.5-7b", "--gpu", "h100", "--offload", "optimizer"], "needs DeepSpeed or FSDP"),
        (
            ["estimate", "qwen2.5-7b", "--gpu", "h100", "--method", "full", "--quantize", "nf4"],
            "quantized weights cannot train",
        ),
        (["estimate", "qwen2.5-7b", "--gpu", "h100", "--by", "tarce"], "did you mean trace"),
        (["estimate", "qwen2.5-7b", "--gpu", "h100", "--plot", "step.jpg"], "must end in .svg, .png, .html"),
        (["estimate", "qwen2.5-7b", "--gpu", "h100", "--snapshot", "/nowhere/s.pickle"], "cannot be written"),
        (["estimate", "gpt2", "--gpu", "h100", "--seq-len", "4096"], "table of 1024 positions"),
        (["estimate", "gemma-2-9b", "--gpu", "h100", "--attention", "sdpa"], "only with eager, flash"),
        (["estimate", "qwen2.5-7b", "--gpu", "h100", "--job", "/nowhere.json"], "cannot be read"),
        (
            ["estimate", "qwen2.5-7b", "--gpu", "h100", "--method", "full", "--lora-rank", "4"],
            "no meaning with --method full",
        ),
        (["estimate", "", "--gpu", "h100"], "unknown model ''"),
        (["gpus", "nonsense"], "no card has 'nonsense'"),
        (["nonsense"], "No such command 'nonsense'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(arguments: list[str], said: str) -> None:
    done = cli(*arguments, HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert not done.stdout
    assert said in done.stderr
    assert done.stderr.startswith("vramplan: ")
    assert done.stderr.count("\n") == 1


def test_a_job_file(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"lora_targets": ["q_proj", "v_proj"], "expandable_segments": True, "lora_rank": 4}))
    found = cli_json("estimate", "qwen2.5-0.5b", "--gpu", "h100", "--job", str(path), "--lora-rank", "16")
    assert found["job"]["lora_targets"] == ["q_proj", "v_proj"]
    assert found["job"]["expandable_segments"]
    assert found["job"]["lora_rank"] == 16  # a flag wins over the file
    for text, said in (("{", "broken JSON"), ("[1]", "expected a JSON object"), ('{"lora_rnk": 1}', "no such setting")):
        path.write_text(text)
        done = cli("estimate", "qwen2.5-0.5b", "--gpu", "h100", "--job", str(path))
        assert done.returncode == 2
        assert said in done.stderr


def test_a_job_file_decides_where_no_flag_does(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"method": "full", "num_gpus": 4}))
    found = cli_json("estimate", "qwen2.5-0.5b", "--gpu", "h100", "--job", str(path))
    assert (found["job"]["method"], found["job"]["num_gpus"]) == ("full", 4)
    again = tmp_path / "again.json"
    again.write_text(json.dumps({k: v for k, v in found["job"].items() if not k.startswith("lora_")}))
    assert cli_json("estimate", "qwen2.5-0.5b", "--gpu", "h100", "--job", str(again)) == found
    path.write_text(json.dumps({"micro_batch_size": 4}))
    done = cli("suggest", "qwen2.5-0.5b", "--gpu", "h100", "--global-batch", "8", "--job", str(path))
    assert done.returncode == 2
    assert "is what suggest searches for" in done.stderr


def test_a_reader_that_goes_away() -> None:
    command = f"{sys.executable} -m vramplan models --json | head -c 10; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_cannot_be_written() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    command = f"{sys.executable} -m vramplan models > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert done.stderr == "vramplan: the output cannot be written (No space left on device)\n"


def test_the_default_length_fits_a_table_of_positions() -> None:
    assert cli_json("estimate", "gpt2", "--gpu", "h100")["job"]["sequence_length"] == 1024


def test_a_sequence_beyond_the_positions_is_a_note() -> None:
    done = cli("estimate", "TinyLlama-1.1B-Chat-v1.0", "--gpu", "h100", "--seq-len", "4096")
    assert done.returncode == 0
    assert "exceed the 2048 positions" in " ".join(done.stdout.split())


OF_TASKS = (
    " --reference --prompt-len --generate-with --num-generations --steps-per-generation --reward-model --value-model"
    " --ppo-trainer --rollout-batch-size --vllm-share --vllm-max-len --vllm-tensor-parallel --teacher --divergence"
    " --generated-by"
)
"""Options of preference and reinforcement training, which commands share."""
FLAGS = {
    "suggest": "--gpu --link --network --global-batch --for --task --num-labels"
    f"{OF_TASKS}"
    " --num-gpus --nodes --method --lora-rank"
    " --lora-targets --lora-dropout --lora-dtype"
    " --dtype --autocast --quantize --optimizer --seq-len --lengths --target-len --audio-seconds"
    " --expandable-segments"
    " --batches --checkpointing --attention --mixer-kernels"
    " --loss --fused-kernels --loop"
    " --strategy --images --videos --frames --image-size --min-pixels --max-pixels --max-tiles"
    " --vision --projector --solve --prefer --warmup-ratio"
    " --offload --job --samples --epochs --base-lr --base-batch"
    " --max-gpus --max-price --prices --tokens-total --tokens --global-tokens --no-expandable-segments"
    " --probe --device --max-runs --timeout --record --confidence --trust-remote-code --verbose --no-cache --html"
    " --json --help",
    "estimate": "--platform --generate-tokens --prompt-tokens --generate-batch --gpu --link --network --micro-batch"
    " --accumulation --by --explain --plot --snapshot --for --html"
    " --confidence --trust-remote-code"
    " --task --num-labels"
    f"{OF_TASKS}"
    " --num-gpus --nodes --method --lora-rank --lora-targets --lora-dropout --lora-dtype --dtype --autocast --quantize"
    " --optimizer"
    " --images --videos --frames --image-size --min-pixels --max-pixels --max-tiles --vision --projector"
    " --seq-len --lengths --target-len --audio-seconds"
    " --expandable-segments"
    " --batches --checkpointing --attention --mixer-kernels"
    " --loss --fused-kernels --loop --strategy --offload --job --verbose --json"
    " --help",
    "oom": "--config --gpu --model --num-gpus --seq-len --confidence --verbose --json --help",
    "report": "--gpu --out --micro-batch --accumulation --global-batch --gpus"
    " --confidence --trust-remote-code"
    " --task --num-labels"
    f"{OF_TASKS}"
    " --num-gpus --nodes --method --lora-rank --lora-targets --lora-dropout --lora-dtype --dtype --autocast --quantize"
    " --optimizer"
    " --images --videos --frames --image-size --min-pixels --max-pixels --max-tiles --vision --projector"
    " --seq-len --lengths --target-len --audio-seconds"
    " --expandable-segments"
    " --batches --checkpointing --attention --mixer-kernels"
    " --loss --fused-kernels --loop --strategy --offload --job --json --help",
    "adapt plan": "--gpu --link --network --global-batch --largest-global-batch --prefer --confidence"
    " --trust-remote-code --no-cache"
    " --task --num-labels"
    f"{OF_TASKS}"
    " --num-gpus --nodes --method --lora-rank --lora-targets --lora-dropout --lora-dtype --dtype --autocast --quantize"
    " --optimizer"
    " --images --videos --frames --image-size --min-pixels --max-pixels --max-tiles --vision --projector"
    " --seq-len --lengths --target-len --audio-seconds"
    " --expandable-segments"
    " --batches --checkpointing --attention --mixer-kernels"
    " --loss --fused-kernels --loop --strategy --offload --job --json --help",
    "adapt simulate": "--policy --global-batch --largest-global-batch --coupling --dwell --half-life --unit --share"
    " --eta --schedule --plot --json --help",
    "compare": "--gpu --link --network --micro-batch --accumulation --confidence --trust-remote-code"
    " --task --num-labels"
    f"{OF_TASKS}"
    " --num-gpus --nodes --method --lora-rank --lora-targets --lora-dropout --lora-dtype --dtype --autocast --quantize"
    " --optimizer"
    " --images --videos --frames --image-size --min-pixels --max-pixels --max-tiles --vision --projector"
    " --seq-len --lengths --target-len --audio-seconds"
    " --expandable-segments"
    " --batches --checkpointing --attention --mixer-kernels"
    " --loss --fused-kernels --loop --strategy --offload --job --json --help",
    "check": "--gpu --link --network --num-gpus --model --framework --framework-version --set --deepspeed"
    " --exec --task --seq-len --method"
    " --checkpointing --images --videos --frames --audio-seconds --image-size --dataset"
    " --tokenizer --min-headroom --confidence --fix --write --verbose --json"
    " --help",
    "images": "--gpu --sizes --plot --confidence --task --num-labels"
    f"{OF_TASKS}"
    " --num-gpus --nodes --method --lora-rank --lora-targets --lora-dropout"
    " --lora-dtype --dtype --autocast --quantize --optimizer --seq-len --lengths --target-len --audio-seconds"
    " --expandable-segments"
    " --batches --checkpointing --attention --mixer-kernels"
    " --loss --fused-kernels"
    " --images --videos --frames --image-size --min-pixels --max-pixels --max-tiles --vision --projector --loop"
    " --strategy --offload"
    " --job --verbose --json"
    " --help",
    "table": "--models --gpus --methods --seq-lens --show --micro-batch --format --config --name --check --write"
    " --shard --out --merge --verbose --jobs"
    " --confidence --task --num-labels"
    f"{OF_TASKS}"
    " --num-gpus --nodes --lora-rank --lora-targets --lora-dropout --lora-dtype --dtype"
    " --autocast --quantize"
    " --optimizer --target-len --audio-seconds"
    " --images --videos --frames --image-size --min-pixels --max-pixels --max-tiles --vision"
    " --expandable-segments"
    " --projector --batches --checkpointing --attention --mixer-kernels"
    " --loss --fused-kernels --loop --strategy --offload --job"
    " --no-cache --json"
    " --help",
    "probe": "--as-card --micro-batch --accumulation --steps --find-max --max-runs --device --timeout --record"
    " --history --trust-remote-code --task --num-labels"
    f"{OF_TASKS}"
    " --num-gpus --nodes --method --lora-rank --lora-targets --lora-dropout --lora-dtype"
    " --dtype --autocast --quantize --optimizer --seq-len --lengths --target-len --audio-seconds"
    " --expandable-segments"
    " --batches --checkpointing --attention --mixer-kernels"
    " --loss --fused-kernels --loop"
    " --images --videos --frames --image-size --min-pixels --max-pixels --max-tiles --vision --projector"
    " --strategy --offload --job --json --help",
    "measure": "--out --merge --minutes --only --list --device --as-card --timeout --on --slurm --jobs"
    " --shard --for --gpus --num-gpus --help",
    "emulate": "--gpu --num-gpus --install --help",
    "accuracy": "--ledger --published --emulated --times --by --markdown --json --help",
    "models": "--json --help",
    "site": "--out --parts --help",
    "gpus": "--json --help",
}


@pytest.mark.parametrize("command", FLAGS)
def test_flags_are_frozen(command: str) -> None:
    """A flag that comes or goes is a decision, made here and in the README."""
    lines = cli(*command.split(), "--help").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    options = [match[1] for line in lines if (match := re.match(r"  (?:-\w, )?(--[\w-]+)", line))]
    assert len(options) == len(set(options)), "each in one group"
    assert set(options) == set(FLAGS[command].split())


@pytest.mark.parametrize("command", FLAGS)
def test_help_is_grouped_and_has_examples_that_parse(command: str) -> None:
    page = cli(*command.split(), "--help").stdout
    titles = [line.rstrip(":") for line in page.splitlines() if line.endswith(":") and not line.startswith(" ")]
    options = [title for title in titles if title not in ("Arguments", "Examples")]
    assert options == [panel for panel in PANELS if panel in options], "in one order on all pages"
    assert titles[-1] == "Examples"
    examples = page.partition("Examples:")[2].replace("\\\n", " ").splitlines()
    commands = [shlex.split(line) for line in examples if line.strip()]
    assert 1 <= len(commands) <= 3
    for words in commands:
        assert [words[0], command_of(words[1:])] == ["vramplan", command]
        typer_command(command).make_context(
            command, words[1 + len(command.split()) :]
        )  # raises if an option is unknown


def test_help_and_version() -> None:
    page = cli().stdout
    assert page == cli("--help").stdout
    for title in TASKS:
        assert f"\n{title}:\n" in page
    assert set(re.findall(r"^  ([a-z]+)  +[A-Z]", page, re.MULTILINE)) == {name.split()[0] for name in FLAGS}
    assert len([line for line in page.partition("Examples:")[2].splitlines() if line.strip()]) == 3
    assert max(len(line) for line in cli("suggest", "--help", COLUMNS="50").stdout.splitlines()) <= 50
    assert page.isascii()
    assert re.fullmatch(r"vramplan 0\.\S+ \((compiled|pure Python) core.*\)\n", cli("--version").stdout)
    assert cli("--version", "gpus").stdout == cli("--version").stdout, "typer's is the same"


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("vramplan sugg", {"suggest"}),
        ("vramplan suggest qwen2.5-7", {"qwen2.5-7B"}),
        ("vramplan suggest --gpu rtx4090", {"rtx4090", "rtx4090d", "rtx4090-laptop"}),
        ("vramplan compare --gpu rtx4090,rtx309", {"rtx4090,rtx3090", "rtx4090,rtx3090ti"}),
        ("vramplan suggest --method q", {"qlora"}),
        ("vramplan suggest --strategy zero", {"zero0", "zero1", "zero2", "zero3"}),
        ("vramplan suggest --vision ", {"frozen", "train", "lora"}),
        ("vramplan estimate --optimizer adamw_8", {"adamw_8bit"}),
        ("vramplan check --framework llama", {"llamafactory"}),
    ],
)
def test_the_shell_completes(line: str, values: set[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = cli(_VRAMPLAN_COMPLETE="complete_bash", **words)
    assert done.returncode == 0, done.stderr
    assert values <= set(done.stdout.split())


def test_errors_spell_settings_as_options() -> None:
    known = {flag.field or name for name, flag in JOB_FLAGS.items()}
    options = {option for flags in FLAGS.values() for option in flags.split()}
    for field in (*Job.model_fields, *OTHER_FLAGS):
        name, _, value = spell_flag(field, "7").partition(" ")
        assert value == "7"
        assert name in options if field in known or field in OTHER_FLAGS else name == field
    assert spell_flag("micro_batch_size", "") == "--micro-batch"
    assert spell_flag("trust_remote_code", "True") == "--trust-remote-code"


def test_the_option_is_where_something_is_kept() -> None:
    assert {command for command, flags in FLAGS.items() if "--no-cache" in flags} == {"adapt plan", "suggest", "table"}


@pytest.mark.parametrize("command", ["adapt plan", "suggest", "table"])
def test_nothing_is_kept_if_nothing_is_to_be(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of this test fail, after the option was seen."""
    disabled: list[str] = []
    monkeypatch.setattr("vramplan.disk_cache.disable", lambda: disabled.append(command))
    question = ["gpt2", "--gpu", "nosuch", "--global-batch", "8"]
    words = command.split() + (["--models", "gpt2"] if command == "table" else question)
    assert (cli(*words).returncode, disabled) == (2, [])
    assert (cli(*words, "--no-cache").returncode, disabled) == (2, [command])


def test_a_cache_that_cannot_be_used_is_told_with_v(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramplan.disk_cache.notice", lambda: "results are not kept: no \x1broom")
    line = "vramplan: results are not kept: no \\u001broom\n"
    for words in (
        ["estimate", "gpt2", "--gpu", "h100", "-v"],
        ["estimate", "gpt2", "--gpu", "h100", "--seq-len", " 9", "-v"],
    ):
        assert cli(*words).stderr == line
    assert cli("estimate", "gpt2", "--gpu", "h100").stderr == ""


def test_a_defect_of_ours_is_no_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A launcher reads 1 as "does not fit"."""

    def broken() -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("sys.argv", ["vramplan", "gpus"])
    monkeypatch.setattr("vramplan.inputs.catalog.all_gpus", broken)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 70
    assert "RuntimeError: a defect" in capsys.readouterr().err
