"""ms-swift's ``swift sft --task_type``: classifiers, embeddings, rerankers (3.12, 4.6: trainers, loss, template)."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers.config_text import Pairs
from vramplan.inputs.embedding import SCORED
from vramplan.inputs.job import Job
from vramplan.inputs.tasks import RERANKERS

SINCE = "3.12"
"""The first version whose embeddings and rerankers were read."""
TASKS = {
    "seq_cls": "sequence_classification",
    "embedding": "embedding",
    "reranker": "reranker",
    "generative_reranker": "generative_reranker",
}
"""Values of task_type -> the job's task."""
TWO_WORDS_SINCE = "4.0"
"""The first version whose generative reranker multiplies two rows of the head's weight, not all of them."""
EMBEDDING_LOSSES = {
    "infonce": "multiple_negatives",
    "cosine_similarity": "cosine_similarity",
    "contrastive": "contrastive",
    "online_contrastive": "online_contrastive",
}
"""Values of loss_type -> the job's `embedding_loss`."""
RERANKER_LOSSES = ("", "pointwise_reranker", "listwise_reranker", "reranker")
"""Values of loss_type with one number for each text; the last is version 3's."""
PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")
MOST_NEGATIVES = 7
"""MAX_NEGATIVE_SAMPLES: what a reranker's collator takes of a sample's texts (template/base.py)."""
HEADS = ("score", "classifier")
"""Modules that PEFT trains in full with the task type SEQ_CLS (peft_model.py: classifier_module_names)."""
NOT_LANGUAGE_MODELS = ("embeddinggemma", "gte_qwen2", "gte-qwen2")
"""In names of models that it loads as a SentenceTransformer."""


def is_typed(config: ConfigReader) -> bool:
    """Whether the configuration trains something else than the next token."""
    return config.lowercase("task_type", default="causal_lm") != "causal_lm"


def task_fields(config: ConfigReader, version: str, model: str, job: dict[str, Any]) -> dict[str, Any]:
    """What ``--task_type`` changes in a job that has been read for the next token.

    Raises:
        UnsupportedError: for training, or a setting, that is not modelled.
        ConfigError: for what ms-swift itself refuses.
    """
    value = config.lowercase("task_type", default="causal_lm")
    if value == "generative_reranker" and not at_least(version, TWO_WORDS_SINCE):
        nearest = estimate_command(model, _plain(job) | {"task": value})
        raise config.unsupported(
            "task_type",
            f"of versions before {TWO_WORDS_SINCE}, with all words' logits, is not modelled yet; nearest, as of"
            f" {TWO_WORDS_SINCE}, which needs less, and of one text for each query: {nearest}",
        )
    if value not in TASKS:
        raise config.unsupported("task_type", f"is not modelled yet; modelled: {', '.join(TASKS)}")
    if value != "seq_cls" and not at_least(version, SINCE):
        raise config.unsupported("task_type", f"of versions before {SINCE} is not modelled yet")
    for name in ("use_liger_kernel", "use_liger"):
        config.require_off(name, why=f"with task_type {value} is not modelled yet; leave it out")
    joins = config.boolean("padding_free", default=False)
    if joins and not at_least(version, SINCE):
        raise config.unsupported("padding_free", f"with task_type {value} before {SINCE} is not modelled yet")
    packs = config.boolean("packing", default=False)
    if packs and not at_least(version, SINCE):
        raise config.unsupported("packing", f"with task_type {value} before {SINCE} is not modelled yet")
    config.read_keys |= {"loss_type", "problem_type"}
    fields: dict[str, Any] = {"task": TASKS[value], "loss": "standard"}
    fields["batches"] = "packed" if joins or packs else "padded"
    read = {"seq_cls": _classifier, "embedding": _embedding}.get(value, _reranker)
    fields |= read(config)
    return fields | _packs(config, fields, job.get("sequence_length")) if packs else fields


def _packs(config: ConfigReader, fields: Mapping[str, Any], pack: int | None) -> dict[str, Any]:
    """Packs of whole samples, each with all its texts (dataset/packing.py: create_packed_idx sums their lengths).

    A pack is one row, whose tokens decide; into how many texts they are divided changes only the scores, a few KiB.

    Raises:
        UnsupportedError: for a stream, of which ms-swift counts a sample's texts instead of their tokens.
    """
    if fields["task"] == "sequence_classification":
        return {}  # a sample is one text, and no longer than a pack
    config.require_off("streaming", why="with packing of samples of several texts is not modelled")
    texts = fields["negatives"] + (2 if fields["task"] == "embedding" else 1)
    longest = config.integer("max_length", default=0, least=0) if config.has("max_length") else pack
    if longest is None or pack is None:
        raise config.unsupported("packing", "without max_length is not modelled: samples may be of any length")
    if texts * longest > pack:
        config.note(
            "doubt",
            "packing",
            f"makes a pack of its own of a sample whose texts together have more than {pack:,} tokens:"
            f" {texts} texts of max_length would be {texts * longest:,}",
        )
    return {"negatives": 0, "sequence_length": ceil(pack / 2) if fields["task"] == "embedding" else pack}


def _plain(job: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in job.items() if name not in ("loss", "batches")}


def _classifier(config: ConfigReader) -> dict[str, Any]:
    """The class of transformers; its losses differ in numbers for each label."""
    config.require_off("loss_type", why="with task_type seq_cls is not modelled yet")
    if config.lowercase("problem_type", default=PROBLEMS[0]) not in PROBLEMS:
        raise config.invalid(("problem_type",), ", ".join(PROBLEMS))
    if not config.has("num_labels"):
        raise ConfigError(f"{config.place('task_type')}: ms-swift stops without num_labels")
    return {"num_labels": config.integer("num_labels", default=2)}


def _embedding(config: ConfigReader) -> dict[str, Any]:
    name = config.lowercase("loss_type", default="")
    if not name:
        losses = ", ".join(EMBEDDING_LOSSES)
        raise ConfigError(f"{config.place('task_type')}: ms-swift stops without loss_type: one of {losses}")
    if name not in EMBEDDING_LOSSES:
        raise config.unsupported(
            "loss_type", f"of embeddings is not modelled yet; modelled: {', '.join(EMBEDDING_LOSSES)}"
        )
    model = str(config.string("model", "model_id_or_path")).lower()
    if any(part in model for part in NOT_LANGUAGE_MODELS):
        raise config.unsupported("task_type", "of a model that ms-swift loads as a SentenceTransformer is not modelled")
    fields: dict[str, Any] = {"joins_texts": True, "embedding_loss": EMBEDDING_LOSSES[name]}
    return fields if EMBEDDING_LOSSES[name] in SCORED else fields | {"negatives": _negatives(config, 1, "one")}


def _reranker(config: ConfigReader) -> dict[str, Any]:
    """A sample is each of its positive texts, followed by its negative ones, up to a number of both."""
    if config.lowercase("loss_type", default="") not in RERANKER_LOSSES:
        raise config.unsupported("loss_type", "of a reranker is not modelled yet")
    if config.integer("num_labels", default=1) != 1:
        raise config.unsupported("num_labels", "of a reranker other than 1 is not modelled yet")
    positives, most = (
        int(found) if (found := config.variable(name)) is not None and found.isdecimal() else default
        for name, default in (("MAX_POSITIVE_SAMPLES", 1), ("MAX_NEGATIVE_SAMPLES", MOST_NEGATIVES))
    )
    return {"negatives": _negatives(config, positives * (1 + most) - 1, f"as many as ms-swift takes, {most},")}


def _negatives(config: ConfigReader, default: int, what: str) -> int:
    """Texts that do not match, which only the data says."""
    if not config.has("negatives") and config.is_off("packing"):
        config.note(
            "doubt",
            "negatives",
            f"of each sample, which only the data says: each is one more text in every forward; {what} for each is"
            " taken; --dataset FILE counts them, --set negatives=N gives them",
        )
    return config.integer("negatives", default=default, least=0)


def without_head(job: Job) -> Job:
    """The job without the classifier's head among the modules to save: PEFT adds it for this task."""
    if job.task not in ("sequence_classification", "reranker"):
        return job
    rest = tuple(name for name in job.modules_to_save or () if name not in HEADS)
    return job.model_copy(update={"modules_to_save": rest or None})


def type_pairs(job: Job) -> Pairs:
    """The task of a job, for a ``swift sft`` command; empty for others.

    Raises:
        UnsupportedError: for a loss that ms-swift does not have.
    """
    types = {task: name for name, task in TASKS.items()}
    if job.task not in types:
        return {}
    pairs: Pairs = {"task_type": types[job.task]}
    if job.task == "sequence_classification":
        return pairs | {"num_labels": job.num_labels or 2}
    if job.task in RERANKERS:
        return pairs | {"loss_type": "pointwise_reranker" if job.negatives == 0 else "listwise_reranker"}
    return pairs | {"loss_type": next(name for name, loss in EMBEDDING_LOSSES.items() if loss == job.embedding_loss)}
