"""Where a script's training is started from, what bounds its files, and what else it loads."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from vramplan.errors import ConfigError, VramplanError
from vramplan.frameworks.detect import from_path, from_words
from vramplan.frameworks.syntax.python_ast import read_script
from vramplan.planner.check import read

TRAINING = """\
from trl import SFTConfig, SFTTrainer
{head}
{start}
    SFTTrainer("Qwen/Qwen2.5-0.5B", SFTConfig("o", per_device_train_batch_size={size})).train()
{end}
"""
HYDRA = {
    "conf/config.yaml": "defaults:\n  - size: small\n  - _self_\ntrain: {rows: 3}\nhydra: {job: {chdir: false}}\n",
    "conf/size/small.yaml": "name: Qwen/Qwen2.5-0.5B\n",
    "conf/size/large.yaml": "# @package _group_\nname: Qwen/Qwen2.5-1.5B\n",
    "train.py": "import hydra\nfrom trl import SFTConfig, SFTTrainer\n"
    '@hydra.main(version_base=None, config_path="conf", config_name="config")\ndef main(cfg):\n'
    '    SFTTrainer(cfg.size.name, SFTConfig("o", per_device_train_batch_size=cfg.train.rows)).train()\nmain()\n',
}


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def write(files: dict[str, str]) -> None:
    """Write files below the current folder."""
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def training(head: str, start: str, end: str, size: str = "rows") -> str:
    """A script that trains inside of a block."""
    return TRAINING.format(head=head, start=start, end=end, size=size)


def parsed(path: str, *words: str) -> Any:
    """A script, or its command, as it is read."""
    return read(from_words(["python", path, *words], None, {}) if words else from_path(Path(path), None, {}), 1)


def test_hydra_composes_files_and_words() -> None:
    write(HYDRA)
    plain = parsed("train.py")
    assert (plain.model, plain.job["micro_batch_size"]) == ("Qwen/Qwen2.5-0.5B", 3)
    chosen = parsed("train.py", "size=large", "train.rows=6")
    assert (chosen.model, chosen.job["micro_batch_size"]) == ("Qwen/Qwen2.5-1.5B", 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conf/size/small.yaml": "name: ${oc.env:NAME}\n"}, "model"),
        ({"conf/config.yaml": "defaults:\n  - size@other: small\n"}, "what hydra makes of config is not known"),
        (
            {"conf/config.yaml": "defaults:\n  - size: missing\n  - _self_\n"},
            "conf/size/missing.yaml, which is not here",
        ),
        ({"conf/config.yaml": "train:\n  rows: ???\nsize: {name: Qwen/Qwen2.5-0.5B}\n"}, "per_device_train_batch_size"),
    ],
)
def test_what_hydra_alone_knows(change: dict[str, str], message: str) -> None:
    write(HYDRA | change)
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        parsed("train.py")


@pytest.mark.parametrize(
    ("head", "start"),
    [
        ("import typer\napp = typer.Typer()\n@app.command()", "def train(rows: int = 3):"),
        ("import click\n@click.command()\n@click.option('--rows', default=3)", "def train(rows):"),
        ("rows = 3", "def main():"),
        ("rows = 3", "def main(argv=None):"),
    ],
)
def test_a_function_that_the_package_starts(head: str, start: str) -> None:
    write({"train.py": training(head, start, "")})
    assert parsed("train.py").job["micro_batch_size"] == 3


def test_a_function_that_another_script_calls() -> None:
    write({
        "jobs/core.py": training("", "def train(rows):", ""),
        "jobs/start.py": "from jobs.core import train\nif __name__ == '__main__':\n    train(5)\n",
        "tests/test_core.py": "from jobs.core import train\n",
    })  # fmt: skip
    with pytest.raises(ConfigError, match=r"nothing here calls; check what does: vramplan check jobs/start.py$"):
        parsed("jobs/core.py")
    assert parsed("jobs/start.py").job["micro_batch_size"] == 5


def test_the_shell_script_that_starts_it() -> None:
    write({
        "train.py": "from trl import SFTConfig, SFTTrainer, TrlParser\n"
        "(args,) = TrlParser(SFTConfig).parse_args_and_config()\nSFTTrainer('Qwen/Qwen2.5-0.5B', args).train()\n",
        "run.sh": "accelerate launch --num_processes 1 \\\n  train.py --per_device_train_batch_size 5 --output_dir o\n",
    })  # fmt: skip
    with pytest.raises(ConfigError, match=r"takes its settings from the command line; .* vramplan check run.sh"):
        parsed("train.py")
    assert parsed("run.sh").job["micro_batch_size"] == 5


def test_lists_among_flags() -> None:
    write({
        "train.py": "from dataclasses import dataclass\nfrom typing import List, Optional\n"
        "from peft import LoraConfig\nfrom transformers import HfArgumentParser\n"
        "from trl import SFTConfig, SFTTrainer\n"
        "@dataclass\nclass Mine:\n    modules: Optional[List[str]] = None\n"
        "mine, args = HfArgumentParser((Mine, SFTConfig)).parse_args_into_dataclasses()\n"
        "SFTTrainer('Qwen/Qwen2.5-0.5B', args, peft_config=LoraConfig(target_modules=mine.modules)).train()\n",
    })  # fmt: skip
    job = parsed("train.py", "--output_dir", "o", "--modules", "q_proj", "v_proj").job
    assert list(job["lora_targets"]) == ["q_proj", "v_proj"]


# -- other models ------------------------------------------------------------------------------------------------------

SCORED = """\
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
{before}
def score(completions, **kwargs):
    return [0.0 for _ in completions]
trainer = GRPOTrainer("Qwen/Qwen2.5-0.5B", [score], GRPOConfig("o", max_completion_length=64))
trainer.train()
{after}
"""


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("judge = AutoModelForSequenceClassification.from_pretrained('a/b').cuda()", "", [3]),
        ("from sentence_transformers import SentenceTransformer\njudge = SentenceTransformer('a/b')", "", [4]),
        ("AutoTokenizer.from_pretrained('a/b')", "AutoModelForCausalLM.from_pretrained('o')", []),
        ("", "", []),
    ],
)
def test_models_beside_the_trained_one(before: str, after: str, lines: list[int]) -> None:
    write({"train.py": SCORED.format(before=before, after=after)})
    doubts = [note for note in parsed("train.py").notes if "beside it, which is not counted" in note.text]
    assert [note.key for note in doubts] == [f"train.py:{line}" for line in lines]


def test_trls_former_trainer() -> None:
    write(
        {
            "train.py": "from trl import RLOOTrainer\n"
            "RLOOTrainer(config=c, policy=p, ref_policy=r, reward_model=m).train()\n"
        }
    )
    with pytest.raises(VramplanError, match="former RLOOTrainer"):
        parsed("train.py")


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "files",
    [
        {"a.yaml": "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(8))},
        {"a.yaml": "a: " + "[" * 5_000},
        {"a.yaml": "rows: " + "9" * 10_000},
        {"a.yaml": json.dumps({str(number): [number] * 9 for number in range(9_000)})},
        {"a.yaml": "rows: 3", "helpers.py": "from other import y\nimport helpers\n", "other.py": "import helpers\n"},
        {"a.yaml": "rows: 3", "helpers.py": "def f(n):\n    return f(n + 1) + f(n + 2)\nf(0)\n"},
        {"a.yaml": "rows: 3", "helpers.py": "x = 1\n" * 100_000},
        {"a.yaml": "rows: 3", "helpers.py": "def\n"},
    ],
)  # fmt: skip
def test_hostile_files_end_soon(files: dict[str, str]) -> None:
    text = training("import yaml\nimport helpers\nrows = yaml.safe_load(open('a.yaml')).get('rows', 3)", "if True:", "")
    write({"helpers.py": "", "train.py": text} | files)
    start = time.process_time()
    answer = ""
    try:
        answer = str(parsed("train.py").job["micro_batch_size"])
    except VramplanError as error:
        answer = str(error)
    assert answer == "3" or answer.startswith("train.py:6: ")
    assert "\n" not in answer
    assert time.process_time() - start < 5


def test_shell_files_in_a_circle() -> None:
    write({
        "env.sh": "source ./env.sh\nROWS=3\n",
        "run.sh": "source ./env.sh\nswift sft --model Qwen/Qwen2.5-0.5B --dataset d --tuner_type lora \\\n"
        "  --max_length 256 --torch_dtype bfloat16 --per_device_train_batch_size $ROWS\n",
    })  # fmt: skip
    assert parsed("run.sh").job["micro_batch_size"] == 3


# -- modules -----------------------------------------------------------------------------------------------------------

MODULES = {
    "conf.py": "rows = 1\nseen = []\ndef get():\n    return rows\ndef bump(n=2):\n    global rows\n    rows += n\n"
    "    seen.append(rows)\nclass Box:\n    size = 4\n    def __init__(self):\n        self.rows = rows\n"
    "__all__ = ['rows', 'get', 'bump', 'Box', 'seen']\nif __name__ == '__main__':\n    rows = 100\n",
    "pkg/__init__.py": "from .sub.deep import value, make\n",
    "pkg/sub/__init__.py": "",
    "pkg/sub/deep.py": "from ..consts import K\nvalue = K + 1\ndef make(x):\n    from pkg.consts import K as k\n"
    "    return x * k\n",
    "pkg/consts.py": "K = 5\n",
}
USES = """\
from conf import *
import conf as c, pkg, pkg.consts
from pkg.sub import deep
show = []
bump()
show += [rows, c.rows, get(), seen[0], Box().rows]
c.rows = 7
show += [get(), rows, Box.size]
c.bump(3)
show += [c.rows, seen[-1], pkg.value, deep.value, pkg.make(2), pkg.consts.K]
getter = c.get
c.rows = 11
show += [getter(), [one() for one in (get, c.get)][1]]
"""


def test_modules_behave_as_in_python() -> None:
    write(MODULES | {"use.py": f"{USES}print(show)\n", "train.py": f"{USES}record(show)\n"})
    result = subprocess.run([sys.executable, "use.py"], capture_output=True, text=True, check=True, timeout=60)
    (call,) = read_script(Path("train.py").read_text(), "train.py").named("record")
    assert call.positional == [json.loads(result.stdout)]
