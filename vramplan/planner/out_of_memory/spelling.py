"""Changes in the words of the framework that ran: that of the configuration, or the one whose calls the log shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from vramplan.frameworks.detect import from_text
from vramplan.frameworks.known_keys import known_keys
from vramplan.frameworks.parsed_config import SPELLINGS, ParsedConfig
from vramplan.frameworks.registry import FRAMEWORKS
from vramplan.inputs.job import Job
from vramplan.planner.out_of_memory.cause import Cause
from vramplan.planner.read_config import read

Say = Callable[[str, str], str | None]
"""(setting, value or "") -> the line, or the key alone without a value; None if the framework has no such key, or the
job has that value already."""
_SETTING = re.compile(r"\{(\w+)(?:=([^{}]+))?\}")
_SCRIPT = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("m")
trainer = Trainer(model=model, args=TrainingArguments(output_dir="o"))
trainer.train()
"""
EXAMPLES: dict[str, tuple[str, str]] = {
    "llamafactory": ("train.yaml", "model_name_or_path: m\nstage: sft\ndo_train: true\ntemplate: default\n"),
    "axolotl": (
        "train.yaml",
        "base_model: m\nadapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\nsequence_len: 2048\n"
        "micro_batch_size: 2\ngradient_accumulation_steps: 1\ndatasets: [{path: d}]\n",
    ),
    "ms-swift": ("train.sh", "swift sft --model m --dataset d\n"),
    "unsloth": (
        "train.py",
        "from trl import SFTConfig, SFTTrainer\nfrom unsloth import FastLanguageModel\n"
        'model, tokenizer = FastLanguageModel.from_pretrained("m")\nmodel = FastLanguageModel.get_peft_model(model)\n'
        'trainer = SFTTrainer(model=model, args=SFTConfig(output_dir="o"))\ntrainer.train()\n',
    ),
    **dict.fromkeys(("trl", "transformers", ""), ("train.py", _SCRIPT)),
}
"""Framework -> name and text of a small configuration, from which its reader tells its keys."""


def in_words(causes: Iterable[Cause], say: Say, known: Iterable[str] = ()) -> tuple[Cause, ...]:
    """The causes with their changes spelled, each once: not those `known`, nor those without a key."""
    said = {*known}
    spelled = []
    for cause in causes:
        every = [line for change in cause.changes for line in _spell(change, say)]
        lines = [line for line in every if line not in said]
        said.update(lines)
        spelled.append(replace(cause, changes=tuple(lines)))
    return tuple(spelled)


def _spell(change: str, say: Say) -> list[str]:
    """The lines of a change; empty if the framework has no key for it."""
    words = {match[0]: say(match[1], match[2] or "") for match in _SETTING.finditer(change)}
    for setting, word in words.items():
        if word is None:
            return []
        change = change.replace(setting, word)
    return change.split("; ")


def words_of(reading: ParsedConfig, job: Job | None = None) -> Say:
    """The words of a configuration's framework, without what its job has already."""
    framework = next((one for one in FRAMEWORKS.values() if one.name == reading.framework), None)
    keys = known_keys(reading.framework, framework.inherits if framework is not None else ())

    def say(name: str, value: str) -> str | None:
        if value and str(getattr(job, name, None)) == value:
            return None
        if name in reading.names:
            key = reading.names[name]
            return "; ".join(reading.say({name: value})) or None if value else key if isinstance(key, str) else None
        if name not in keys:
            return None
        return SPELLINGS[reading.spelling](name, value) if value else name

    return say


@cache
def words_in_log(framework: str) -> Say:
    """The words of a framework by its name; for one without an example none."""
    if framework not in EXAMPLES:
        return lambda name, value: None
    name, text = EXAMPLES[framework]
    return words_of(read(from_text(text, Path(name), None, {}), 1, None))
