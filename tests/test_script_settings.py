"""Scripts whose settings lie in files and modules of their own: followed without running them, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramplan.errors import ConfigError, VramplanError
from vramplan.frameworks.detect import from_path, from_words
from vramplan.frameworks.syntax.plain_data import NOT_PLAIN, load_yaml
from vramplan.planner.check import read

SETTINGS = """\
model: {name: Qwen/Qwen2.5-0.5B-Instruct, dtype: bfloat16}
lora: {r: 8, targets: [q_proj, v_proj]}
train:
  per_device_train_batch_size: 2
  learning_rate: 1e-4
  bf16: true
  max_length: 512
"""
HELPERS = """\
from pathlib import Path
import torch, yaml
from peft import LoraConfig
from transformers import AutoModelForCausalLM

def load_settings(path):
    path = Path(path)
    with path.open(encoding="utf-8") as file:
        settings = yaml.safe_load(file)
    if "extends" in settings:
        base = load_settings(path.parent / settings.pop("extends"))
        settings = merged(base, settings)
    return settings

def merged(base, other):
    result = dict(base)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result

class Loader:
    def __init__(self, settings):
        self.model, self.lora = settings["model"], settings["lora"]

    def load(self):
        return AutoModelForCausalLM.from_pretrained(self.model["name"], dtype=getattr(torch, self.model["dtype"]))

    def adapters(self):
        return LoraConfig(r=self.lora["r"], target_modules=self.lora["targets"])
"""
SCRIPT = """\
import argparse
from common.helpers import Loader, load_settings
from trl import DPOConfig, DPOTrainer

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", {default})
    settings = load_settings(parser.parse_args().config)
    arguments = dict(settings["train"])
    loader = Loader(settings)
    trainer = DPOTrainer(
        model=loader.load(), args=DPOConfig(output_dir="out", **arguments), peft_config=loader.adapters()
    )
    trainer.train()

if __name__ == "__main__":
    main()
"""
TRAIN = """\
from trl import SFTConfig, SFTTrainer
{lines}
SFTTrainer('Qwen/Qwen2.5-0.5B', SFTConfig('o', per_device_train_batch_size=n)).train()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose script reads its settings by its own helpers; the current folder."""
    for name in ("common", "configs", "scripts"):
        (tmp_path / name).mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "common/helpers.py").write_text(HELPERS)
    (tmp_path / "configs/run.yaml").write_text(SETTINGS)
    (tmp_path / "configs/longer.yaml").write_text("extends: run.yaml\ntrain: {max_length: 1024}\nlora: {r: 32}\n")
    (tmp_path / "scripts/train.py").write_text(SCRIPT.replace("{default}", 'default="configs/run.yaml"'))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(path: str, *words: str) -> dict[str, Any]:
    """The job of a script, or of its command."""
    config = from_words(["python", path, *words], None, {}) if words else from_path(Path(path), None, {})
    return read(config, 1).job


def sft(lines: str) -> dict[str, Any]:
    """The job of a script with these lines before its trainer."""
    Path("train.py").write_text(TRAIN.replace("{lines}", lines))
    return job("train.py")


def test_settings_by_helpers_of_the_project(project: Path) -> None:
    plain = job("scripts/train.py")
    assert (plain["task"], plain["dtype"], plain["micro_batch_size"]) == ("dpo", "bf16", 2)
    assert (plain["lora_rank"], plain["sequence_length"]) == (8, 512)
    longer = job("scripts/train.py", "--config", "configs/longer.yaml")
    assert (longer["lora_rank"], longer["sequence_length"], longer["micro_batch_size"]) == (32, 1024, 2)


def test_a_script_that_is_started_as_a_module(project: Path) -> None:
    command = ["python", "-m", "scripts.train", "--config", "configs/longer.yaml"]
    assert read(from_words(command, None, {}), 1).job["lora_rank"] == 32


def test_the_files_are_named(project: Path) -> None:
    notes = from_path(Path("scripts/train.py"), None, {}).source.notes
    assert [(note.text, note.place) for note in notes] == [
        ("configs/run.yaml is read for settings, as the script does", "common/helpers.py:9")
    ]


def test_what_is_not_here_is_named(project: Path) -> None:
    (project / "configs/run.yaml").unlink()
    with pytest.raises(ConfigError, match=r"common/helpers.py:9 reads configs/run.yaml, which is not here") as error:
        job("scripts/train.py")
    assert "\n" not in str(error.value)
    (project / "scripts/train.py").write_text(SCRIPT.replace("{default}", "required=True"))
    with pytest.raises(ConfigError, match=r"vramplan check -- python scripts/train.py --config \.\.\."):
        job("scripts/train.py")


def test_a_value_that_a_run_changes_is_not_known(project: Path) -> None:
    helpers = HELPERS.replace(
        "    return settings\n", "    if tuned():\n        settings['lora']['r'] = 64\n    return settings\n"
    )
    (project / "common/helpers.py").write_text(helpers)
    with pytest.raises(ConfigError, match="lora_r"):
        job("scripts/train.py")


def test_a_helper_that_trains_otherwise_is_refused(project: Path) -> None:
    (project / "common/helpers.py").write_text(f"{HELPERS}\ntorch.set_default_dtype(torch.float16)\n")
    with pytest.raises(VramplanError, match=r"common/helpers.py:\d+: torch.set_default_dtype"):
        job("scripts/train.py")


@pytest.mark.parametrize(
    "lines",
    [
        "import json\nn = json.load(open('a.json'))['n']",
        "import json\nfrom pathlib import Path\nn = json.loads(Path('a.json').read_text())['n']",
        "import json\nn = json.loads(json.dumps({'n': 3}))['n']",
        "import os, yaml\nwith open(os.path.join('.', 'a.json')) as f:\n    n = yaml.safe_load(f).get('n', 8)",
        "from pathlib import Path\nimport yaml\nn = yaml.safe_load((Path(__file__).parent / 'a.json').open())['n']",
        "from omegaconf import OmegaConf\nn = OmegaConf.load('a.json').n",
        "from omegaconf import OmegaConf\nc = OmegaConf.merge(OmegaConf.load('a.json'), {'m': {'k': 3}})\nn = c.m.k",
        "from omegaconf import OmegaConf as O\nn = O.merge(O.load('a.json'), O.from_cli())['n']",
        "from dataclasses import dataclass, fields\n@dataclass\nclass C:\n    n: int = 3\n"
        "n = {f.name: f.default for f in fields(C)}['n']",
    ],
)
def test_ways_to_load_a_number(project: Path, lines: str) -> None:
    Path("a.json").write_text(json.dumps({"n": 3, "m": {"k": 1, "j": 2}}))
    assert sft(lines)["micro_batch_size"] == 3


@pytest.mark.parametrize(
    "lines",
    [
        "n = int(open('/etc/passwd').read()[:1] == 'r')",
        "import json\njson.dump({'n': 4}, open('a.json', 'w'))\nn = json.load(open('a.json'))['n']",
        "import json\nc = json.load(open('a.json'))\nchange(c)\nn = c['n']",
        "from omegaconf import OmegaConf\nn = OmegaConf.load('b.yaml').n",
        "import yaml\nn = yaml.safe_load(open('c.yaml'))['n']",
    ],
)
def test_what_only_a_run_tells(project: Path, lines: str) -> None:
    Path("a.json").write_text('{"n": 3}')
    Path("b.yaml").write_text("m: 3\nn: ${m}\n")
    Path("c.yaml").write_text("n: !!python/object/apply:int [3]\n")
    with pytest.raises(ConfigError, match="per_device_train_batch_size"):
        sft(lines)


def test_numbers_as_pyyaml_reads_them() -> None:
    text = "a: 1e-4\nb: 1.0e-4\nc: 1_000\nd: yes\ne: '5'\nf: 2024-01-01\ng: 0x10\nh: ~\n2: i\n"
    text += "j: &j {k: 1}\nl: {<<: *j, m: 2}\n"
    loaded = load_yaml(text, "a.yaml")
    assert loaded == {
        "a": "1e-4", "b": 1e-4, "c": 1000, "d": True, "e": "5", "f": NOT_PLAIN, "g": NOT_PLAIN, "h": None, 2: "i",
        "j": {"k": 1}, "l": {"k": 1, "m": 2},
    }  # fmt: skip
    assert load_yaml(text, "a.yaml", is_omegaconf=True)["a"] == 1e-4


def test_a_class_of_arguments_with_the_scripts_own_defaults(project: Path) -> None:
    lines = """\
from dataclasses import dataclass
from transformers import HfArgumentParser
@dataclass
class Arguments(SFTConfig):
    per_device_train_batch_size: int = 5
    output_dir: str = "o"
(args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
SFTTrainer('Qwen/Qwen2.5-0.5B', args).train()
"""
    Path("train.py").write_text(f"from trl import SFTConfig, SFTTrainer\n{lines}")
    assert job("train.py")["micro_batch_size"] == 5
    assert job("train.py", "--per_device_train_batch_size", "6")["micro_batch_size"] == 6
    Path("train.py").write_text(
        Path("train.py").read_text().replace("per_device_train_batch_size: int = 5", "n: int = 5")
    )
    with pytest.raises(ConfigError, match="takes its settings from the command line"):
        job("train.py")


def test_a_file_for_trls_parser(project: Path) -> None:
    Path("run.yaml").write_text("model: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 7\noutput_dir: o\n")
    Path("own.py").write_text(
        "from dataclasses import dataclass\nfrom trl import SFTConfig, SFTTrainer, TrlParser\n"
        "@dataclass\nclass Mine:\n    model: str\n"
        "mine, args = TrlParser((Mine, SFTConfig)).parse_args_and_config()\nSFTTrainer(mine.model, args).train()\n"
    )
    assert job("own.py", "--config", "run.yaml")["micro_batch_size"] == 7
    assert job("own.py", "--config", "run.yaml", "--per_device_train_batch_size", "9")["micro_batch_size"] == 9


ENVIRONMENT = """\
MODEL=Qwen/Qwen2.5-0.5B-Instruct
EXTRA=(--lora_rank 16 --max_length 512)
span() { printf '%s\\n' --num_train_epochs 1 --save_strategy epoch; }
if [[ -n "${SKIP:-}" ]]; then
  return 2
fi
BATCH=${BATCH:-3}
"""
SHELL = """\
source "$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/env.sh"
mapfile -t SPAN < <(span)
swift sft --model "$MODEL" --dataset d --tuner_type lora --torch_dtype bfloat16 \\
  --per_device_train_batch_size $BATCH "${EXTRA[@]}" "${SPAN[@]}"
"""


def test_values_of_a_sourced_file(project: Path) -> None:
    Path("scripts/env.sh").write_text(ENVIRONMENT)
    Path("scripts/run.sh").write_text(SHELL)
    answer = read(from_path(Path("scripts/run.sh"), None, {}), 1).job
    assert (answer["lora_rank"], answer["sequence_length"], answer["micro_batch_size"]) == (16, 512, 3)
    answer = read(from_path(Path("scripts/run.sh"), None, {"BATCH": "5"}), 1).job
    assert answer["micro_batch_size"] == 5
    Path("scripts/env.sh").unlink()
    with pytest.raises(ConfigError, match="is not known without running"):
        read(from_path(Path("scripts/run.sh"), None, {}), 1)


def test_a_sourced_file_outside_of_the_project_is_not_read(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other") / "env.sh"
    other.write_text(ENVIRONMENT)
    Path("run.sh").write_text(SHELL.replace(SHELL.splitlines()[0], f"source {other}"))
    with pytest.raises(ConfigError, match="is not known without running"):
        read(from_path(Path("run.sh"), None, {}), 1)


OWN_STEP = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
class Mine(Trainer):
    def {method}(self, model, inputs, return_outputs=False, **kwargs):
{body}
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16")
Mine(model=model, args=TrainingArguments("o", bf16=True, per_device_train_batch_size=3)).train()
"""


def with_step(body: str, method: str = "compute_loss") -> dict[str, Any]:
    """The job of a script with a trainer that has this method."""
    inner = "".join(f"        {line}\n" for line in body.splitlines())
    Path("train.py").write_text(OWN_STEP.replace("{method}", method).replace("{body}\n", inner))
    return job("train.py")


@pytest.mark.parametrize(
    "body",
    [
        "return super().compute_loss(model, inputs, return_outputs, **kwargs)",
        "loss = super().compute_loss(model, inputs, return_outputs=False)\nself.last = loss.item()\nreturn loss",
        "loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)\n"
        "if self.state.global_step % 10 == 0:\n    self.log({'a': loss.detach().item(), 'n': len(inputs['x'])})\n"
        "return (loss, outputs) if return_outputs else loss",
        "'''The usual.'''\noutputs = model(**inputs)\nloss = outputs.loss\nprint(f'{float(loss):.3f}')\n"
        "return (loss, outputs) if return_outputs else loss",
        "outputs = model(**inputs)\nloss = outputs['loss']\nreturn loss",
    ],
)
def test_a_loss_that_is_the_usual(project: Path, body: str) -> None:
    assert with_step(body)["micro_batch_size"] == 3


@pytest.mark.parametrize(
    "body",
    [
        "outputs = model(**inputs)\nloss = outputs.loss * 2\nreturn loss",
        "outputs = model(**inputs)\nother = model(**inputs)\nloss = outputs.loss\nreturn loss",
        "labels = inputs.pop('labels')\noutputs = model(**inputs)\nloss = outputs.loss\nreturn loss",
        "loss, out = super().compute_loss(model, inputs, True)\nself.log({'p': out.logits.float().mean().item()})\n"
        "return loss",
        "loss, out = super().compute_loss(model, inputs, True)\nself.log({'p': (out.logits * 2).mean().item()})\n"
        "return loss",
        "loss, outputs = super().compute_loss(model, inputs, True)\nself.kept.append(outputs)\nreturn loss",
        "self.loss_fct = self.other\nreturn super().compute_loss(model, inputs)",
        "model = self.frozen\nreturn super().compute_loss(model, inputs)",
        "loss = super().compute_loss(model, inputs)\nextra(model)\nreturn loss",
        "loss = super().compute_loss(model, dict(inputs))\nreturn loss",
        "loss = super().other(model, inputs)\nreturn loss",
        "return self.loss(model, inputs)",
    ],
)
def test_a_loss_of_its_own_is_refused(project: Path, body: str) -> None:
    with pytest.raises(VramplanError, match="Mine, a subclass of Trainer with its own compute_loss"):
        with_step(body)


def test_a_training_step_that_only_logs(project: Path) -> None:
    body = "loss = super().training_step(model, inputs, **kwargs)\nlogger.info(f'{loss.item()}')\nreturn loss"
    assert with_step(body, "training_step")["micro_batch_size"] == 3
    with pytest.raises(VramplanError, match="with its own training_step"):
        with_step("outputs = model(**inputs)\nloss = outputs.loss\nreturn loss", "training_step")
