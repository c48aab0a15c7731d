"""Classifiers around transformers' Trainer: the class that a script loads, and transformers' own example scripts.

The scripts' defaults are those of transformers 4.20 to 5.23 (examples/pytorch/text-classification and
token-classification).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vramplan.frameworks.settings import ConfigReader, ConfigValue

HEADS: Mapping[str, str] = {
    "ForSequenceClassification": "sequence_classification",
    "ForTokenClassification": "token_classification",
    "ForImageClassification": "image_classification",
    "ForAudioClassification": "sequence_classification",
}
"""Ends of the names of classes -> the job's task."""
NEAREST: Mapping[str, str] = {
    "ForMultipleChoice": "each choice as a row of its own: vramplan estimate MODEL --gpu GPU --task"
    " sequence_classification --method full --micro-batch N, which is choices times samples",
    "ForQuestionAnswering": "two numbers for each token: vramplan estimate MODEL --gpu GPU --task token_classification"
    " --method full",
}
"""Ends of the names of classes that are not read -> the estimate that comes nearest."""
TASK_KEY = "classifier"
"""The key under which a Python script's class says the task."""
IMAGE_SIZE = "transforms of images are not read: they are taken as the model's own processor makes them"
TASK_TYPES = ("SEQ_CLS", "TOKEN_CLS")
"""PEFT's, with which the new head trains in full (peft_model.py: classifier_module_names)."""
GLUE = {"stsb": 1, "mnli": 3, "cola": 2, "sst2": 2, "mrpc": 2, "qqp": 2, "qnli": 2, "rte": 2, "wnli": 2}
"""Labels of GLUE's tasks."""


class Example(NamedTuple):
    """A script of transformers' examples."""

    task: str
    length: int | None = None
    """Tokens to which it cuts texts by default; None: to the model's."""
    num_labels: int | None = None
    """Labels, if its data set is always the same."""


EXAMPLES: Mapping[str, Example] = {
    "run_glue.py": Example("sequence_classification", 128),
    "run_classification.py": Example("sequence_classification", 128),
    "run_xnli.py": Example("sequence_classification", 128, num_labels=3),
    "run_ner.py": Example("token_classification"),
}


def settings_of(name: str, keywords: Mapping[str, ConfigValue], place: str) -> dict[str, ConfigValue]:
    """The task and the labels of a class that a Python script loads; none if it is no classifier's."""
    task = next((task for end, task in HEADS.items() if name.endswith(end)), None)
    if task is None:
        return {}
    settings = {TASK_KEY: ConfigValue(task, place)}
    labels, names = keywords.get("num_labels"), keywords.get("id2label")
    if labels is not None:
        settings["num_labels"] = labels
    elif names is not None and isinstance(names.value, dict):
        settings["num_labels"] = ConfigValue(len(names.value), names.place)
    return settings | {name: keywords[name] for name in ("problem_type",) if name in keywords}


def read_classifier(config: ConfigReader, script: str, job: dict[str, Any]) -> dict[str, Any]:
    """Fields of a job that a classifier decides; none if the configuration is no classifier's.

    Args:
        config: the configuration.
        script: the path of the script that a command runs, or nothing.
        job: what has been read so far.

    Raises:
        UnsupportedError: for a setting that is not modelled.
    """
    example = EXAMPLES.get(Path(script).name) if config.source.spelling != "python" else None
    task = example.task if example is not None else config.lowercase(TASK_KEY, default="")
    if not task:
        return {}
    config.require_off("use_liger_kernel", why="of a classifier is not modelled yet")
    config.require_off("problem_type", "single_label_classification")
    fields: dict[str, Any] = {"task": task, "batches": "padded", "loss": "standard"}
    if task == "image_classification":
        del fields["batches"]
        config.note("doubt", "image_size", IMAGE_SIZE)
    if job["method"] != "full":
        _require_trained_head(config)
    labels = _num_labels(config, example)
    if labels is None:
        config.note("default", "num_labels", "not known: 2 labels are taken, whose number hardly matters")
    else:
        fields["num_labels"] = labels
    if example is not None and example.length is not None and "sequence_length" not in job:
        config.note("default", "max_seq_length", f"not set: {example.length}")
        fields["sequence_length"] = example.length
    return fields


def _num_labels(config: ConfigReader, example: Example | None) -> int | None:
    if example is None:
        value = config.source.settings.get("num_labels")
        config.read_keys.add("num_labels")
        is_known = value is not None and isinstance(value.value, int)
        return config.integer("num_labels", default=2) if is_known else None
    return example.num_labels or GLUE.get(config.lowercase("task_name", default=""))


def _require_trained_head(config: ConfigReader) -> None:
    """PEFT trains the head beside the adapters if the task type says so, or its module is named."""
    task_type = str(config.string("lora_task_type") or "")
    if not task_type.endswith(TASK_TYPES) and not config.has("lora_modules_to_save"):
        raise config.unsupported(
            "lora_task_type", "is neither SEQ_CLS nor TOKEN_CLS: a head that never trains is not modelled; set it"
        )
