"""`check --fix`: the user's own text with the fewest changes, read again."""

from __future__ import annotations

import difflib
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import cli
from tests.test_check import PUBLISHED
from tests.test_frameworks import FOLDER
from vramplan.atomic_write import write
from vramplan.errors import ConfigError
from vramplan.frameworks.detect import from_line, from_path, from_text
from vramplan.frameworks.edit import command, config_file
from vramplan.frameworks.syntax.config_files import mapping
from vramplan.planner import check
from vramplan.planner.fix import fix

CASES = {
    "llamafactory/lora.yaml": ("rtx3060", {"quantization_bit"}),
    "llamafactory/full.yaml": ("rtx4090", {"pure_bf16", "bf16"}),
    "llamafactory/command.sh": (
        "rtx4090",
        {"per_device_train_batch_size", "gradient_accumulation_steps", "enable_liger_kernel"},
    ),
    "axolotl/anchors.yaml": ("rtx2080ti", {"micro_batch_size", "gradient_accumulation_steps"}),
    "ms-swift/lora.sh": ("rtx3060", {"quant_method", "quant_bits"}),
    "transformers/arguments.json": (
        "rtx3060",
        {"per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size"},
    ),
    "transformers/script.sh": ("rtx3060", {"per_device_train_batch_size", "gradient_accumulation_steps"}),
    "trl/eight.sh": ("rtx3060", {"accelerate_config"}),
    "axolotl/qlora.yaml": ("t4", {"fp16"}),
    "transformers/zero2.sh": (
        "t4",
        {"dtype", "bf16", "fp16", "per_device_train_batch_size", "gradient_accumulation_steps"},
    ),
}
"""Configurations that do not fit these cards, and the settings that have to change."""


@pytest.mark.parametrize("name", CASES)
def test_what_is_printed_fits(name: str, tmp_path: Path) -> None:
    """Read again it fits at the same global batch, and every line without a change is the same byte for byte."""
    gpu, keys = CASES[name]
    found = fix(FOLDER / name, gpu)
    if gpu == "t4":  # where it would not even run
        before = check.check(FOLDER / name, "rtx4090")
    else:
        before = found.before
        assert not before.fits
    assert {change.key for change in found.changes} == keys
    shutil.copytree((FOLDER / name).parent, tmp_path / "own")
    path = tmp_path / "own" / Path(name).name
    old = path.read_bytes().decode().splitlines(keepends=True)
    path.write_bytes(found.text.encode())
    after = check.check(path, gpu, num_gpus=1)
    assert after.fits
    assert after.estimate.job.global_batch_size == before.estimate.job.global_batch_size
    assert after.estimate.job.sequence_length == before.estimate.job.sequence_length
    new = path.read_bytes().decode().splitlines(keepends=True)
    touched = [line for line in difflib.ndiff(old, new) if line.startswith("+ ")]
    assert touched
    assert all(any(key in line for key in keys) for line in touched)
    assert len(new) - len(old) <= len(keys)
    assert fix(path, gpu).text == found.text, "what fits is left alone"


def test_what_keeps_the_result_goes_first(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    text = (FOLDER / "llamafactory/lora.yaml").read_text()
    path.write_text(text.replace("per_device_train_batch_size: 1", "per_device_train_batch_size: 8  # fast"))
    found = fix(path, "rtx4090")
    assert [(one.key, one.before, one.after) for one in found.changes] == [
        ("per_device_train_batch_size", "8", "1"),
        ("gradient_accumulation_steps", "8", "64"),
    ]
    assert "per_device_train_batch_size: 1  # fast\n" in found.text


def test_an_evaluation_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nfinetuning_type: lora\nbf16: true\nval_size: 0.1\n"
        "per_device_train_batch_size: 1\nper_device_eval_batch_size: 64\neval_strategy: steps\ncutoff_len: 2048\n"
    )
    (change,) = fix(path, "rtx4090").changes
    assert change.key == "per_device_eval_batch_size"
    larger = path.read_text().replace("eval_batch_size: 64", f"eval_batch_size: {int(change.after) + 1}")
    path.write_text(larger)
    assert not check.check(path, "rtx4090").fits, "no smaller than it has to be"


def test_batches_that_deepspeed_says_too(tmp_path: Path) -> None:
    """transformers stops where its batch is not the one of DeepSpeed's own file: that is told, and no fix does it."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4}')
    text = (FOLDER / "llamafactory/pure_bf16.yaml").read_text() + "deepspeed: ds.json\n"
    path = tmp_path / "train.yaml"
    path.write_text(text + "per_device_train_batch_size: 2\n")
    with pytest.raises(ConfigError, match=r"ds\.json: train_micro_batch_size_per_gpu is 4, and 2 elsewhere"):
        check.read(from_path(path, None, {}), 2)
    path.write_text(text + "per_device_train_batch_size: 4\n")
    assert check.read(from_path(path, None, {}), 2).job["micro_batch_size"] == 4


def test_a_plugin_is_added_to_those_that_are_there() -> None:
    text = "base_model: x\nplugins:\n  - a.b.C  # mine\n# end\nsequence_len: 8\n"
    changed = config_file.edit(text, "a.yaml", {"plugins": "[d.e.F]", "liger_fused_linear_cross_entropy": "true"})
    assert changed == (
        "base_model: x\nplugins:\n  - a.b.C  # mine\n  - d.e.F\nliger_fused_linear_cross_entropy: true\n"
        "# end\nsequence_len: 8\n"
    )
    assert config_file.edit("plugins: [a]\n", "", {"plugins": "[b]"}) == "plugins: [a, b]\n"
    assert config_file.edit("plugins:\nx: 1", "", {"plugins": "[b]"}) == "plugins: [b]\nx: 1"


@pytest.mark.parametrize(
    ("text", "changes", "changed"),
    [
        ("bf16: True  # yes\n", {"bf16": "false"}, "bf16: False  # yes\n"),
        ("bf16: 'no'\r\nx: 1\r\n", {"bf16": "true", "fp16": "true"}, "bf16: true\r\nfp16: true\r\nx: 1\r\n"),
        ("bf16:\nx: 1\n", {"bf16": "true"}, "bf16: true\nx: 1\n"),
        ("n: &n 4\noptim: *n\n", {"optim": "sgd", "n": "5"}, "n: &n 5\noptim: sgd\n"),
        ("x: |\n  a\n  b\n", {"optim": "sgd"}, "x: |\n  a\n  b\noptim: sgd\n"),
        ("optim: a", {"bf16": "true"}, "optim: a\nbf16: true"),
        (
            '{"bf16": true, "x": {}}',
            {"fp16": "true", "optim": "a"},
            '{"bf16": true, "fp16": true, "optim": "a", "x": {}}',
        ),
        ('{\n\t"bf16": true,\n\t"x": 1\n}', {"fp16": "false"}, '{\n\t"bf16": true,\n\t"fp16": false,\n\t"x": 1\n}'),
        ('{\n  "x": 1\n}', {"fp16": "false"}, '{\n  "x": 1,\n  "fp16": false\n}'),
    ],
)
def test_files_edited(text: str, changes: dict[str, str], changed: str) -> None:
    """By hand, spelling and order and ends of lines kept."""
    assert config_file.edit(text, "a.yaml", changes) == changed


NAMES = ("per_device_train_batch_size", "optim", "bf16", "cutoff_len", "lora_rank", "seed", "note")
ENTRIES = st.sampled_from(
    [
        "{}: 1",
        "{}: 'a b'  # why",
        "{}:\n  - x\n  - y: 2\n",
        "{}: [1, 2]",
        "{}: |\n  many\n\n  lines",
        "{}:",
        '"{}":   q',
    ]
)
BETWEEN = st.sampled_from(["", "\n", "# a comment\n", "   \n# optim: no\n"])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_file_edited(data: st.DataObject) -> None:
    """Read again, what was changed is as wanted, the rest as before; lines that hold no change are there in order."""
    names = data.draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    text = "".join(data.draw(BETWEEN) + data.draw(ENTRIES).format(name) + "\n" for name in names)
    text += data.draw(BETWEEN)
    text = text.rstrip("\n") if data.draw(st.booleans()) else text
    text = text.replace("\n", "\r\n") if data.draw(st.booleans()) else text
    changes = data.draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["7", "true", "word"]), min_size=1))
    changed = config_file.edit(text, "a.yaml", changes)
    before, after = (
        {key: one.value.rstrip() if isinstance(one.value, str) else one.value for key, one in mapping(one, "a").items()}
        for one in (text, changed)
    )
    assert {key: str(value).lower() for key, value in after.items() if key in changes} == changes
    assert {key: value for key, value in after.items() if key not in changes} == {
        key: value for key, value in before.items() if key not in changes
    }
    if not changes.keys() & before.keys():
        kept = [line for line in changed.splitlines() if line.partition(":")[0] not in changes]
        assert kept == text.splitlines()


@pytest.mark.parametrize(
    ("text", "changes", "changed"),
    [
        (
            "swift sft --model a --optim b > log\n",
            {"bf16": "true"},
            "swift sft --model a --optim b --bf16 true > log\n",
        ),
        (
            "swift sft \\\n  --optim=b \\\n  --model=a\n",
            {"bf16": "true"},
            "swift sft \\\n  --optim=b \\\n  --bf16=true \\\n  --model=a\n",
        ),
        ("swift sft --model a \\\r\n  --optim 'b'\r\n", {"optim": "c"}, "swift sft --model a \\\r\n  --optim c\r\n"),
        ("N=4\nswift sft --model a --optim $N  # n\n", {"optim": "c"}, "N=4\nswift sft --model a --optim c  # n\n"),
        (
            "A=(--optim b)\nswift sft --model a ${A[@]} &\n",
            {"optim": "c"},
            "A=(--optim b)\nswift sft --model a ${A[@]} --optim c &\n",
        ),
        ("swift sft --model a --no_bf16\n", {"bf16": "true"}, "swift sft --model a --bf16 true\n"),
        ("swift sft --model a --fp16\n", {"fp16": "false"}, "swift sft --model a --fp16 false\n"),
        (
            "llamafactory-cli train x.yaml optim=b\n",
            {"optim": "c", "bf16": "true"},
            "llamafactory-cli train x.yaml optim=c bf16=true\n",
        ),
        ("axolotl train x.yaml\n", {"micro_batch_size": "1"}, "axolotl train x.yaml --micro-batch-size 1\n"),
        (
            "trl sft --model-name-or-path a --lora-r 4\n",
            {"load_in_4bit": "true"},
            "trl sft --model-name-or-path a --lora-r 4 --load-in-4bit true\n",
        ),
        (
            "tune run --standalone lora_dpo_distributed --config x.yaml batch_size=8 model.lora_rank=16\n",
            {"batch_size": "1", "tokenizer.max_seq_len": "512"},
            "tune run --standalone lora_dpo_distributed --config x.yaml batch_size=1 model.lora_rank=16"
            " tokenizer.max_seq_len=512\n",
        ),
        (
            "python examples/run_sft.py --config x.yaml policy.precision=fp32\n",
            {"policy.precision": "bfloat16", "policy.train_micro_batch_size": "1"},
            "python examples/run_sft.py --config x.yaml policy.precision=bfloat16 policy.train_micro_batch_size=1\n",
        ),
    ],
)
def test_scripts_edited(
    text: str, changes: dict[str, str], changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: in place, else behind the kin, else at the end, in the command's own style."""
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text("base_model: a\nmodel_name_or_path: a\n")
    found = from_text(text, Path("run.sh"), None, {})
    assert command.edit(text, found.framework, found.origin, changes) == changed
    again = from_text(changed, Path("run.sh"), None, {})
    assert {key: str(again.source.settings[key].value).lower() for key in changes} == changes


def test_a_list_is_no_flag() -> None:
    found = from_line("swift sft --model a\n", None, {})
    with pytest.raises(ConfigError, match="by a flag"):
        command.edit("swift sft --model a\n", found.framework, found.origin, {"plugins": "[x]"})


def test_the_command_line(tmp_path: Path) -> None:
    wide = [word if word != "1" else "4" for word in PUBLISHED]
    done = cli("check", "--gpu", "rtx4090d", "--fix", "--", *wide, "--output_dir", "my out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("swift sft --model Qwen2.5-7B-Instruct --train_type lora --dataset 'a#500'")
    assert done.stdout.endswith("--output_dir 'my out'\n")
    assert "per_device_train_batch_size: 1, was 4" in done.stderr
    again = cli("check", "--gpu", "rtx4090d", "--fix", "--", *PUBLISHED)
    assert "fits as it is" in again.stderr
    none = cli(
        "check", "--gpu", "rtx3060", "--fix", "--", "swift", "sft", "--model", "Qwen2.5-72B", "--max_length", "64"
    )
    assert (none.returncode, none.stdout) == (1, "")
    assert none.stderr.count("\n") == 1
    assert "no change that was tried makes it fit" in none.stderr
    wrong = cli("check", "--gpu", "rtx4090d", "--write", "--", *PUBLISHED)
    assert (wrong.returncode, wrong.stderr) == (2, "vramplan: --write goes with --fix\n")


def test_written_in_place(tmp_path: Path) -> None:
    """The file behind a link, its mode kept; what is interrupted leaves the old one."""
    script, link = tmp_path / "run.sh", tmp_path / "link.sh"
    script.write_bytes(b"\xef\xbb\xbf" + (FOLDER / "ms-swift/lora.sh").read_bytes())
    script.chmod(0o750)
    link.symlink_to(script)
    shown = cli("check", str(link), "--gpu", "rtx3060", "--fix")
    done = cli("check", str(link), "--gpu", "rtx3060", "--fix", "--write")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert link.is_symlink()
    assert script.stat().st_mode & 0o777 == 0o750
    assert script.read_bytes().startswith(b"\xef\xbb\xbf")
    assert script.read_text(encoding="utf-8") == shown.stdout
    before = script.read_bytes()
    with pytest.raises(TypeError):
        write(script, object())  # type: ignore[arg-type]
    assert script.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.sh", "run.sh"]


def test_as_data() -> None:
    done = cli("check", str(FOLDER / "trl/eight.sh"), "--gpu", "rtx3060", "--fix", "--json")
    found = json.loads(done.stdout)
    assert found["fits"]
    assert not found["fitted_before"]
    assert found["changes"] == [{"key": "accelerate_config", "before": None, "after": "fsdp2", "cost": "communication"}]
    assert "--accelerate_config fsdp2" in found["text"]
