"""What a configuration does not say is not decided: its need is shown for several values."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from tests.helpers import cli
from vramplan.errors import ConfigError
from vramplan.planner import check
from vramplan.planner.fix import fix
from vramplan.planner.verdict import Verdict
from vramplan.render.check import answer
from vramplan.render.check_words import need_of_check, words_of_check
from vramplan.render.figures import gib
from vramplan.render.terminal import SafeConsole
from vramplan.render.ways_out import ways_out
from vramplan.render.web.checked import of_check

NO_LENGTH = (
    "model_name_or_path: Qwen/Qwen3-8B\ndtype: bfloat16\nuse_peft: true\nlora_r: 16\ndataset_name: a/b\n"
    "max_length: null\nper_device_train_batch_size: 1\ngradient_checkpointing: true\n"
)
ANY_COUNT = (
    "model_name_or_path: Qwen/Qwen2.5-3B\nstage: sft\nfinetuning_type: full\nbf16: true\ncutoff_len: 1024\n"
    "per_device_train_batch_size: 1\ndeepspeed: z3.json\nenable_liger_kernel: true\n"
)
ZERO_3 = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"}'


def _write(folder: Path, text: str) -> Path:
    (folder / "z3.json").write_text(ZERO_3)
    (folder / "train.yaml").write_text(text)
    return folder / "train.yaml"


def test_the_longest_sample_that_fits(tmp_path: Path) -> None:
    path = _write(tmp_path, NO_LENGTH)
    verdict = check.check(path, "rtx4090", num_gpus=1)
    assert verdict.depends
    assert not verdict.fits
    lengths = [case.sequence_length for case in verdict.cases]
    assert lengths[:4] == [1024, 2048, 4096, 8192]
    longest = max(case.sequence_length for case in verdict.cases if case.fits)
    assert verdict.estimate.job.sequence_length == longest
    for case in verdict.cases:
        alone = check.check(path, "rtx4090", num_gpus=1, sequence_length=case.sequence_length)
        assert (alone.need_bytes, alone.fits) == (case.need_bytes, case.fits)
    assert not check.check(path, "rtx4090", num_gpus=1, sequence_length=longest + longest // 16).fits


def test_every_length_of_the_model_fits(tmp_path: Path) -> None:
    verdict = check.check(_write(tmp_path, NO_LENGTH), "h200", num_gpus=1)
    assert verdict.fits
    assert verdict.cases[-1].sequence_length == 40_960


def test_any_number_of_gpus(tmp_path: Path) -> None:
    path = _write(tmp_path, ANY_COUNT)
    verdict = check.check(path, "a100-40gb")
    assert verdict.depends
    assert [case.num_gpus for case in verdict.cases] == [1, 2, 4, 8]
    fits = [case.fits for case in verdict.cases]
    assert fits == sorted(fits), "more GPUs hold less each"
    for case in verdict.cases:
        alone = check.check(path, "a100-40gb", num_gpus=case.num_gpus)
        assert not alone.cases
        assert (alone.need_bytes, alone.fits) == (case.need_bytes, case.fits)
    with pytest.raises(ConfigError, match="num_gpus"):
        fix(path, "a100-40gb")


def test_fix_writes_the_longest_length(tmp_path: Path) -> None:
    fixed = fix(_write(tmp_path, NO_LENGTH), "rtx4090", num_gpus=1)
    assert fixed.after.fits
    assert [change.key for change in fixed.changes] == ["max_length"]


def test_on_the_screen_and_as_data(tmp_path: Path) -> None:
    path = str(_write(tmp_path, NO_LENGTH))
    done = cli("check", path, "--gpu", "rtx4090", "--num-gpus", "1")
    assert done.returncode == 1
    assert "FITS UP TO" in done.stdout
    data = json.loads(cli("check", path, "--gpu", "rtx4090", "--num-gpus", "1", "--json").stdout)
    assert (data["fits"], data["depends"]) == (False, True)
    assert data["cases"][0]["sequence_length"] == 1024


def test_settings_on_the_command_line(tmp_path: Path) -> None:
    path = str(_write(tmp_path, NO_LENGTH))
    done = cli("check", path, "--gpu", "rtx4090", "--num-gpus", "1", "--set", "max_length=2048", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["job"]["sequence_length"] == 2048
    without = cli(
        "check", path, "--gpu", "rtx4090", "--num-gpus", "1", "--set", "use_peft=", "--set", "lora_r=", "--json"
    )
    assert json.loads(without.stdout)["job"]["method"] == "full"
    zero = cli("check", path, "--gpu", "rtx4090", "--num-gpus", "2", "--deepspeed", str(tmp_path / "z3.json"), "--json")
    assert json.loads(zero.stdout)["job"]["strategy"] == "zero3"
    for pair in ("max_length", "=3"):
        wrong = cli("check", path, "--gpu", "rtx4090", "--set", pair)
        assert wrong.returncode == 2
        assert "expected KEY=VALUE" in wrong.stderr


def test_each_command_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    command = "swift sft --model Qwen/Qwen2.5-{} --tuner_type lora --max_length 1024 --torch_dtype bfloat16\n"
    script.write_text(command.format("0.5B") + command.format("7B"))
    done = cli("check", str(script), "--gpu", "rtx3060")
    assert done.returncode == 1
    assert f"{script}:1" in done.stdout.replace("\n", "")
    assert f"{script}:2" in done.stdout.replace("\n", "")
    assert "FITS" in done.stdout
    assert "DOES NOT FIT" in done.stdout


def test_an_error_names_one_gpu_where_each_holds_the_model(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "from trl import GRPOConfig, GRPOTrainer\n"
        "args = GRPOConfig(output_dir='out', per_device_train_batch_size=6, num_generations=8)\n"
        "GRPOTrainer(model='Qwen/Qwen2.5-1.5B-Instruct', args=args, reward_funcs=score, train_dataset=data).train()\n"
    )
    with pytest.raises(ConfigError, match=r"the 6 completions of a generation \(micro-batch 6 x 1 steps x 1 GPUs\)"):
        check.check(path, "rtx4090")


# -- what never fits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "headline"), [(256, "DOES NOT FIT EVEN AT 32 TOKENS"), (64, "FITS UP TO 32 TOKENS")])
def test_the_headline_is_about_the_shortest_length(tmp_path: Path, batch: int, headline: str) -> None:
    text = NO_LENGTH.replace("use_peft: true\nlora_r: 16\n", "").replace("Qwen3-8B", "Qwen3-0.6B")
    text = text.replace("gradient_checkpointing: true", "gradient_checkpointing: false")
    path = _write(tmp_path, text.replace("batch_size: 1", f"batch_size: {batch}"))
    verdict = check.check(path, "rtx3060", num_gpus=1)
    assert words_of_check(verdict) == headline
    shortest = verdict.cases[0]
    assert (shortest.sequence_length, need_of_check(verdict)) == (32, shortest.need_bytes)
    if not shortest.fits:
        assert verdict.estimate.job.sequence_length == 1024  # what the changes are for
        assert ways_out(verdict)[-1][0].startswith("No micro-batch fits with 1,024 tokens.") or verdict.plan
        assert headline.capitalize() in of_check(verdict).head
        assert gib(shortest.need_bytes) in of_check(verdict).head


def test_one_case_has_no_hint_of_a_number_of_gpus(tmp_path: Path) -> None:
    verdict = check.check(_write(tmp_path, NO_LENGTH.replace("null", "1024")), "rtx3060")
    text = "GiB of each; --num-gpus says how many"
    assert len(verdict.cases) == 2
    assert text in _shown(verdict)
    assert text not in _shown(replace(verdict, cases=verdict.cases[:1]))


def _shown(verdict: Verdict) -> str:
    console = SafeConsole(width=80, file=StringIO())
    with console.capture() as shown:
        console.print(answer(verdict))
    return shown.get()
