"""`vramplan check` as its user calls it, and configurations that no one would write on purpose."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import ROOT, cli
from tests.test_frameworks import FOLDER, REFERENCED
from vramplan.errors import ConfigError, VramplanError
from vramplan.frameworks import parsed_config
from vramplan.frameworks.detect import from_path, from_words
from vramplan.frameworks.detected_config import DetectedConfig
from vramplan.frameworks.installed import installed_version
from vramplan.frameworks.known_keys import known_keys
from vramplan.frameworks.registry import FRAMEWORKS
from vramplan.frameworks.settings import ConfigSource, ConfigValue
from vramplan.frameworks.syntax.argv import split
from vramplan.frameworks.syntax.config_files import load_yaml, read_mapping
from vramplan.frameworks.syntax.shell import commands
from vramplan.inputs.job_values import EXPANDABLE_SEGMENTS
from vramplan.planner import check

PUBLISHED = [
    "swift", "sft", "--model", "Qwen2.5-7B-Instruct", "--train_type", "lora", "--dataset", "a#500", "--torch_dtype",
    "bfloat16", "--num_train_epochs", "1", "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "16",
    "--max_length", "2048", "--learning_rate", "1e-4", "--lora_rank", "8", "--lora_alpha", "32", "--target_modules",
    "all-linear", "--output_dir", "output",
]  # fmt: skip


def test_the_published_command() -> None:
    """ms-swift's README gives 18 to 22 GB for it, on a card of 24."""
    found = check.check(PUBLISHED, "rtx4090d")
    assert found.fits
    assert found.estimate.job.global_batch_size == 16
    assert 18e9 < found.need_bytes < 22e9
    assert not [note for note in found.reading.notes if note.kind == "unknown"]


def test_exit_codes_and_words() -> None:
    fits = cli("check", "--gpu", "rtx4090d", "--", *PUBLISHED)
    assert fits.returncode == 0, fits.stderr
    assert "FITS" in fits.stdout
    wide = [word if word != "2048" else "8192" for word in PUBLISHED]
    found = cli("check", "--gpu", "rtx4090d", "--", *wide)
    assert found.returncode == 1
    assert "DOES NOT FIT" in found.stdout
    assert "--use_liger_kernel true" in found.stdout, "the framework's own words"
    assert max(len(line) for line in found.stdout.splitlines()) <= 80
    lost = cli("check", "--gpu", "rtx4090d", "--", "ls", "-l")
    assert lost.returncode == 2
    assert lost.stderr.count("\n") == 1


def test_json() -> None:
    done = cli("check", str(FOLDER / "llamafactory/lora.yaml"), "--gpu", "rtx4090", "--json")
    found = json.loads(done.stdout)
    assert found["fits"] is True
    assert found["framework"] == "llamafactory"
    assert found["job"]["sequence_length"] == 2048
    assert found["need_bytes"] == found["estimate"]["device_total_bytes"]


def test_a_smaller_batch_at_the_same_global_batch(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    text = (FOLDER / "llamafactory/lora.yaml").read_text()
    path.write_text(text.replace("per_device_train_batch_size: 1", "per_device_train_batch_size: 8"))
    found = check.check(path, "a100-40gb-sxm")
    assert not found.fits
    plan = found.search.recommended
    assert plan.micro_batch_size * plan.gradient_accumulation_steps == 64
    assert plan.estimate.fits


def test_room_that_was_asked_for() -> None:
    tight = check.check(PUBLISHED, "rtx4090d", min_headroom=0.5)
    assert tight.estimate.fits
    assert not tight.fits


def test_evaluation_counts(tmp_path: Path) -> None:
    """Eight whole samples of logits in evaluation, one in training: what surprises people after hours."""
    path = tmp_path / "train.yaml"
    path.write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nfinetuning_type: lora\nbf16: true\nval_size: 0.1\n"
        "per_device_train_batch_size: 1\nper_device_eval_batch_size: 64\neval_strategy: steps\ncutoff_len: 2048\n"
    )
    found = check.check(path, "rtx4090")
    assert found.estimate.fits
    assert found.evaluation_bytes > found.estimate.device_total_bytes
    assert not found.fits


def test_a_model_that_lies_elsewhere() -> None:
    words = [word if word != "Qwen2.5-7B-Instruct" else "/data/models/Qwen2.5-7B-Instruct" for word in PUBLISHED]
    found = check.check(words, "rtx4090d")
    assert found.estimate.model == "Qwen/Qwen2.5-7B-Instruct"
    assert any("is not here" in note.text for note in found.reading.notes)


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        ("a.yaml", b"", "is empty"),
        ("a.yaml", b"\xff\xfe\x00", "is binary"),
        ("a.yaml", b"base_model: x\nname: \xe9\n", "a.yaml:2: is not UTF-8"),
        ("a.yaml", b"base_model: x\n\tmicro_batch_size: 1\n", "a.yaml:2: broken YAML"),
        ("a.yaml", b"- a\n- b\n", "expected settings by name"),
        ("a.yaml", b"a: [" * 3000, "nested too deeply"),
        ("a.yaml", b"x: 1\n", "give framework"),
        ("a.json", b'{"a": 1,}', "a.json:1: broken JSON"),
        ("a.toml", b"[training]\nseq_len = \n", "a.toml: broken TOML"),
        (
            "a.toml",
            b"[training]\nseq_len = 'long'\n[activation_checkpoint]\nmode='full'\n",
            "training.seq_len: expected",
        ),
        ("a.ipynb", b'{"cells": []}', "no cell with code in it"),
        ("a.yaml", b"checkpointer: {}\ntokenizer: {}\n", "model._component_ is not set"),
        ("a.json", b'{"zero_optimization": {"stage": 2}}', "neither train_micro_batch_size_per_gpu nor"),
        ("a.yaml", b"base_model: x\nmicro_batch_size: many\n", "a.yaml:2: micro_batch_size: expected a whole number"),
        ("a.yaml", b"base_model: x\nmicro_batch_size: -1\n", "at least 1, found -1"),
        ("a.yaml", b"base_model: x\ndeepspeed: gone.json\n", "a.yaml:2: deepspeed: no file gone.json"),
        ("a.sh", b"swift sft --model 'x\n", "a.sh:1: a quote ' never ends"),
        ("a.sh", b"echo hello\n", "no training command"),
        ("a.sh", b"swift sft --model a\nswift sft --model b\n", "2 training commands"),
        ("a.sh", b"swift rlhf --sft_type lora --model_type a\n", "--task dpo --autocast"),
        ("a.sh", b"swift rlhf --rlhf_type gkd --model a\n", "self-distillation is not modelled yet"),
        ("a.yaml", b"base_model: a\nsequence_len: 512\nadapter: lora\nlora_r: 8\nrl: kto\n", "KTOTrainer stops at 1"),
        (
            "a.yaml",
            b"base_model: a\nsequence_len: 512\nadapter: lora\nlora_r: 8\nrl: grpo\n"
            b"vllm:\n  gpu_memory_utilization: 0.5\n"
            b"trl:\n  use_vllm: true\n  vllm_mode: colocate\n  num_generations: 4\n",
            "--seq-len 512 --prompt-len 256 --num-generations 4 --generate-with vllm --vllm-share 0.5",
        ),
    ],
)
def test_files_that_are_broken(tmp_path: Path, name: str, raw: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(VramplanError) as error:
        check.read(from_path(tmp_path / name, None, {}), 1)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_bomb_of_aliases(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (tmp_path / "a.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="aliases that multiply"):
        read_mapping(tmp_path / "a.yaml")


def test_nothing_is_executed(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    text = f"X=$(touch {touched}) swift sft --model `touch {touched}` --lora_rank $((2 * 4))\n"
    (command,) = commands(text, "a.sh", {})
    assert command.words[-1] == "8"
    (tmp_path / "a.yaml").write_text(f"base_model: !!python/object/apply:os.system ['touch {touched}']\n")
    with pytest.raises(VramplanError):
        check.read(from_path(tmp_path / "a.yaml", None, {}), 1)
    assert not touched.exists()


def test_scripts() -> None:
    """What a shell makes of these, worked out by hand."""
    text = (
        "N=4; export A=one B='two words'\n"
        "M=${N:-7}; echo $M > /dev/null 2>&1\n"
        'C="x y" torchrun --nproc_per_node=$N train.py \\\n  --name "$B" --steps $(expr 32 / $N) \\\n'
        "  # --not this\n"
        "  --alone\n"
        "cat <<END\nswift sft\nEND\n"
    )
    echo, train, alone, cat = commands(text, "a.sh", {})
    assert echo.words == ["echo", "4"]
    assert train.words == ["torchrun", "--nproc_per_node=4", "train.py", "--name", "two words", "--steps", "8"]
    assert train.environment == {"A": "one", "B": "two words", "C": "x y"}
    assert train.unexported == {"N": "4", "M": "4"}
    assert alone.words == ["--alone"], "a comment inside a continued command ends it"
    assert cat.words == ["cat"]


def test_words_of_variables() -> None:
    """Split where a shell splits them; arrays; what only the call would know is named."""
    text = (
        'OPTS="--bf16 --block_size 512"; A=(--x 4\n  "two words")  # an array\n'
        'python -u run.py $OPTS ${A[@]} "$@"\nsrun -N 1 torchrun --nproc_per_node 2 t.py --s 5 $EXTRA\n'
    )
    first, second = commands(text, "a.sh", {})
    assert first.words == ["python", "-u", "run.py", "--bf16", "--block_size", "512", "--x", "4", "two", "words"]
    assert second.words[-1].endswith("$EXTRA")
    with pytest.raises(ConfigError, match=r"\$EXTRA: is not known without running the script"):
        split(second.words)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**9), st.floats(), st.text(max_size=8), st.lists(st.text()),
    st.dictionaries(st.text(max_size=4), st.integers()), st.sampled_from(["2e-4", "true", "bf16", "auto", "lora"]),
)  # fmt: skip


INSTALLED_VERSION = cache(installed_version)
"""Reading a package's description takes longer than reading a configuration."""


@cache
def _own(name: str) -> dict[str, Any]:
    paths = [path for path in sorted((FOLDER / name).iterdir()) if path.name not in REFERENCED]
    found: dict[str, Any] = {}
    for path in paths:
        try:
            found |= {key: one.value for key, one in from_path(path, None, {}).source.settings.items()}
        except VramplanError:
            continue
    return found


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_subset_in_any_order_reads(name: str, data: st.DataObject) -> None:
    """A job, or one line that says what is wrong; never a traceback."""
    own = _own(name)
    keys, choose = sorted(own), Random(data.draw(st.integers(0, 2**32)))  # drawing each key takes most of the time
    chosen = choose.sample(keys, choose.randint(0, len(keys)))
    odd = data.draw(st.dictionaries(st.sampled_from([*keys, "deepspeed", "stray"]), VALUES, max_size=3))
    values = {key: own[key] for key in chosen} | odd
    source = ConfigSource({key: ConfigValue(value, f"line of {key}") for key, value in values.items()})
    said = ""
    try:
        with patch.object(parsed_config, "installed_version", INSTALLED_VERSION):
            reading = check.read(DetectedConfig(FRAMEWORKS[name], source), 1)
    except VramplanError as error:
        said = str(error)
    else:
        assert reading.job["micro_batch_size"] > 0
        assert reading.job["num_gpus"] > 0
    assert "\n" not in said


def test_words_of_another_kind() -> None:
    with pytest.raises(ConfigError, match="no training command"):
        from_words(["make", "train"], None, {})


def test_the_action_and_the_hook_run_the_command(tmp_path: Path) -> None:
    """The action's own shell line, its inputs put in; and the hook's entry with two files behind it."""
    action = load_yaml((ROOT / ".github/actions/check/action.yml").read_text(), "action.yml")
    last = action["runs"]["steps"][-1]
    given = {"config": str(FOLDER / "ms-swift/lora.sh"), "gpu": "rtx4090d", "num-gpus": "1", "arguments": "--json"}
    variables = {name: given[re.fullmatch(r"\$\{\{ inputs\.(.+) \}\}", text)[1]] for name, text in last["env"].items()}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", last["run"]], env={**os.environ, **variables, "PATH": path}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fits"]
    (hook,) = load_yaml((ROOT / ".pre-commit-hooks.yaml").read_text(), "hooks")
    files = [str(FOLDER / name) for name in ("ms-swift/lora.sh", "llamafactory/lora.yaml")]
    both = cli(*hook["entry"].split()[1:], "--gpu", "rtx4090d", *files)
    assert both.returncode == 0, both.stderr
    assert both.stdout.count("FITS") == 2
    assert cli("check", "--gpu", "rtx3060", *files).returncode == 1


def test_advice_says_all_that_it_takes() -> None:
    """A change that fits only at a smaller micro-batch says so: pasted as it stands, it fits."""
    words = ["swift", "sft", "--model", "Qwen2.5-7B-Instruct", "--tuner_type", "lora", "--torch_dtype", "bfloat16"]
    words += ["--max_length", "4096"]
    batch = ["--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "4"]
    done = cli("check", "--gpu", "rtx4090", "--", *words, *batch)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    inside = [line.strip("│ ") for line in lines if line.startswith("│ ")]
    changes = [word for line in inside if line.startswith("--") and "fewest" not in line for word in line.split()]
    assert changes[:2] == ["--use_liger_kernel", "true"]
    assert check.check([*words, *batch, *changes], "rtx4090").fits


FULL = {
    "llamafactory": "llamafactory/full.yaml",
    "axolotl": "axolotl/full.yaml",
    "trl": "trl/full.sh",
    "torchtune": "torchtune/full.yaml",
    "ms-swift": "ms-swift/full.sh",
    "transformers": "transformers/zero2.sh",
    "script": "scripts/full_hf.py",
    "unsloth": "unsloth/full.py",
    "deepspeed": "deepspeed/zero2.json",
}


@pytest.mark.parametrize("name", FULL)
def test_advice_is_in_the_frameworks_words(name: str) -> None:
    """No row says what only our own command line knows; a variable of the environment is said as one."""
    cards = 1 if name in ("script", "torchtune") else 2  # whose 8-bit optimizer is refused on several
    found = check.check(FOLDER / FULL[name], "rtx3060", num_gpus=cards, model="Qwen/Qwen2.5-14B", sequence_length=4096)
    of_calls = {"offload_optimizer", "zero_optimization", "model", "load_in_4bit", "quantization_config"}
    known = known_keys(found.reading.framework) | of_calls
    rows = [line for one in found.advice for line in one.settings if not line.startswith(EXPANDABLE_SEGMENTS)]
    keys = {re.split("[ :=]", row)[0].lstrip("-").partition(".")[0] for row in rows}
    assert keys
    assert keys <= known | found.reading.synonyms.keys()
    assert all(one.settings or one.card for one in found.advice)


def test_advice_of_a_length() -> None:
    """The largest that fits, also where half of it does not."""
    words = ["swift", "sft", "--model", "Qwen2.5-7B-Instruct", "--torch_dtype", "bfloat16", "--max_length", "16384"]
    (length,) = [one for one in check.check(words, "rtx4090").advice if one.change.startswith("--seq-len")]
    said = int(length.settings[0].split()[1])
    assert length.fits
    assert said < 8192
    for tokens, fits in ((said, True), (said + 64, False)):
        assert check.check([*words[:-1], str(tokens)], "rtx4090").fits == fits


def test_advice_leaves_what_was_asked_for_free(tmp_path: Path) -> None:
    config = tmp_path / "train.yaml"
    text = "model_name_or_path: Qwen/Qwen2.5-3B\nstage: sft\nfinetuning_type: lora\nlora_target: all\nfp16: true\n"
    config.write_text(text + "per_device_train_batch_size: 1\n")
    assert check.check(config, "t4").fits
    found = check.check(config, "t4", num_gpus=1, min_headroom=0.3)
    assert not found.fits
    changes = [one.settings for one in found.advice if one.fits and one.settings]
    assert changes
    for change in changes:
        (tmp_path / "changed.yaml").write_text("\n".join([config.read_text(), *change]))
        assert check.check(tmp_path / "changed.yaml", "t4", num_gpus=1, min_headroom=0.3).fits


def test_an_evaluation_that_is_too_large(tmp_path: Path) -> None:
    config = tmp_path / "train.yaml"
    text = "model_name_or_path: Qwen/Qwen2.5-1.5B\nstage: sft\nfinetuning_type: lora\nbf16: true\nval_size: 0.1\n"
    config.write_text(text + "per_device_train_batch_size: 1\nper_device_eval_batch_size: 16\neval_strategy: steps\n")
    found = check.check(config, "rtx4090")
    assert (found.trains, found.fits, found.plan, found.advice) == (True, False, None, ())
    size = found.eval_batch_size
    assert size
    for samples, fits in ((size, True), (size + 1, False)):
        config.write_text(config.read_text().replace("eval_batch_size: 16", f"eval_batch_size: {samples}"))
        assert check.check(config, "rtx4090", num_gpus=1).fits == fits
        config.write_text(config.read_text().replace(f"eval_batch_size: {samples}", "eval_batch_size: 16"))


def test_what_branches_of_a_script_set_differently(tmp_path: Path) -> None:
    """Which branch runs is not known; a variable that only one sets is."""
    script = tmp_path / "run.sh"
    train = "swift sft --model Qwen/Qwen2.5-0.5B --per_device_train_batch_size $SIZE --max_length 512\n"
    script.write_text('if [ "$1" = big ]; then SIZE=8; else SIZE=1; fi\n' + train)
    with pytest.raises(ConfigError, match=r"\$SIZE is not known"):
        check.check(str(script), "rtx4090")
    script.write_text('if [ -z "$SIZE" ]; then SIZE=2; fi\n' + train)
    assert check.check(str(script), "rtx4090").estimate.micro_batch_size == 2


def test_processes_and_visible_cards() -> None:
    command = ["NPROC_PER_NODE=8", "CUDA_VISIBLE_DEVICES=0,1", "swift", "sft", "--model", "Qwen/Qwen2.5-0.5B"]
    with pytest.raises(ConfigError, match="NPROC_PER_NODE=8 starts more processes"):
        check.check(command, "rtx4090")


def test_deepspeed_that_contradicts_its_trainer(tmp_path: Path) -> None:
    settings = {"zero_optimization": {"stage": 2, "reduce_buckett_size": 1}, "bf16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(settings))
    command = ["swift", "sft", "--model", "Qwen/Qwen2.5-0.5B", "--deepspeed", str(tmp_path / "ds.json")]
    with pytest.raises(ConfigError, match=r"bf16\.enabled is true, and the trainer's bf16 is false"):
        check.check([*command, "--fp16", "true"], "rtx4090")
    notes = check.check([*command, "--bf16", "true"], "rtx4090", look_further=False).reading.notes
    assert any(note.kind == "unknown" and "did you mean reduce_bucket_size" in note.text for note in notes)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("llamafactory/lora.yaml", "bf16: false, fp16: true"),
        ("axolotl/full.yaml", "bf16: false, fp16: true"),
        ("trl/qlora.yaml", "dtype: float16, bf16: false, fp16: true"),
        ("ms-swift/lora.sh", "--torch_dtype float16"),
        ("torchtune/lora.yaml", "dtype: fp32"),
        ("transformers/zero2.sh", "--dtype float16, --bf16 false, --fp16 true"),
    ],
)
def test_cards_without_bf16(name: str, written: str) -> None:
    """What to write stands in the configuration's own words; unsloth looks at the card itself."""
    with pytest.raises(ConfigError, match=f"T4 has no bf16 units .*; write {written}$"):
        check.check(FOLDER / name, "t4")


def test_unsloth_without_bf16() -> None:
    job = check.check(FOLDER / "unsloth/qlora.py", "t4", look_further=False).estimate.job
    assert (job.dtype, job.autocast, job.quantize) == ("fp16", "fp16", "nf4")


def test_a_huge_batch_is_only_a_number() -> None:
    """What is offered beside it are its divisors, not all numbers up to it."""
    values = {"model.flavor": "8B", "training.global_batch_size": 10**9, "activation_checkpoint.mode": "full"}
    source = ConfigSource({key: ConfigValue(value, key) for key, value in values.items()})
    reading = check.read(DetectedConfig(FRAMEWORKS["torchtitan"], source), 1)
    assert reading.job["gradient_accumulation_steps"] == 10**9 // 8
    assert len(reading.names["gradient_accumulation_steps"]) == 100
