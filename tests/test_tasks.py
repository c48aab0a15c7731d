"""Tasks other than language models: classification, rerankers and embeddings against the real classes and losses."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import vramplan
from tests.helpers import cli
from vramplan.analytic.estimator import estimate
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.inputs.job import Job
from vramplan.inputs.load import load_gpu, load_model
from vramplan.memory.estimate import Estimate
from vramplan.memory.summarize import PHASES
from vramplan.planner.job_defaults import complete_job

EMBEDDINGS = json.loads((Path(__file__).parent / "cases" / "embeddings.json").read_text())
"""Peaks by phase, as sentence-transformers 6.2.0 allocated them on fake tensors (torch 2.13, transformers 5.23)."""
GPU = "a100-80gb"
SAMPLES = {"sequence_length": 256, "micro_batch_size": 8}


def planned(model: str, **settings: Any) -> Estimate:
    spec, gpu = load_model(model), load_gpu(GPU)
    return estimate(spec, complete_job(spec, gpu, settings), gpu)


def job_of(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def error(ours: Estimate, phases: dict[str, int]) -> float:
    """The largest of all phases but the evaluation."""
    return max(abs(ours.phases[name] / phases[name] - 1) for name in PHASES if name in phases and name != "eval")


def test_embeddings_agree_with_sentence_transformers() -> None:
    errors = []
    for row in EMBEDDINGS:
        ours = planned(row["model"], **job_of(row["job"]))
        assert ours.num_trainable_parameters == row["trained"], row["model"]
        errors.append(error(ours, row["phases"]))
    assert max(errors) < 0.003
    assert median(errors) < 0.001


QUICK = [
    ("bert-base-uncased", {"task": "classification", "method": "full"}),
    ("xlm-roberta-base", {"task": "token-classification"}),
    ("qwen3-0.6b", {"task": "reranker", "checkpointing": "none"}),
]
MORE = [
    (model, {"task": task, **settings})
    for model in (
        "roberta-base",
        "distilbert-base-uncased",
        "modernbert-base",
        "deberta-v3-base",
        "qwen2.5-0.5b",
        "gpt2",
        "gemma-3-1b",
    )
    for task in ("classification", "token_classification", "reranker")
    for settings in ({"method": "full", "checkpointing": "none"}, {"batches": "padded"})
    if not (model.startswith(("gemma", "gpt2")) and task == "token_classification")
][::3]


def check_traced(model: str, settings: dict[str, Any]) -> None:
    trace = pytest.importorskip(
        "vramplan.torch_backend.trace.trace", reason="the trace needs the extra vramplan[probe]"
    )
    spec, gpu = load_model(model), load_gpu(GPU)
    spec = spec.model_copy(update={"config": {**spec.config, "num_hidden_layers": 6, "n_layer": 6}})
    job = complete_job(spec, gpu, {**SAMPLES, **settings})
    ours, traced = estimate(spec, job, gpu), trace.estimate(spec, job, gpu)
    assert error(ours, traced.phases) < 0.006
    assert (ours.num_parameters, ours.num_trainable_parameters) == (
        traced.num_parameters,
        traced.num_trainable_parameters,
    )


@pytest.mark.parametrize(("model", "settings"), QUICK)
def test_classes_agree_with_transformers(model: str, settings: dict[str, Any]) -> None:
    check_traced(model, settings)


@pytest.mark.full
@pytest.mark.parametrize(("model", "settings"), MORE)
def test_more_classes_agree(model: str, settings: dict[str, Any]) -> None:
    check_traced(model, settings)


def test_answers_name_the_class() -> None:
    words = planned("xlm-roberta-base", **SAMPLES).assumptions[0]
    assert "XLMRobertaForMaskedLM" in words
    assert "task embedding" in words
    assert "trained as LlamaForCausalLM" in planned("llama-3.1-8b", **SAMPLES).assumptions[0]
    assert (
        "ForSequenceClassification with 3 labels"
        in planned("bert-base-uncased", task="classification", num_labels=3, **SAMPLES).assumptions[0]
    )
    assert "trained as XLMRobertaModel for embeddings" in planned("bge-m3", **SAMPLES).assumptions[0]


def test_an_embedding_needs_no_logits() -> None:
    masked, embedded = (
        planned("xlm-roberta-base", task=task, method="full", **SAMPLES) for task in (None, "embedding")
    )
    assert any(term.category == "logits" for term in masked.terms)
    assert not any(term.category == "logits" for term in embedded.terms)


def test_checkpoints_name_their_task() -> None:
    assert planned("bge-reranker-v2-m3", **SAMPLES).job.task == "sequence_classification"
    assert planned("bge-base-en-v1.5", **SAMPLES).job.task == "embedding"


def test_peft_trains_the_head() -> None:
    assert planned("qwen3-0.6b", task="seq_cls", **SAMPLES).job.modules_to_save == ("score",)


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        ("granite-3.1-2b", {"task": "classification"}, "not modelled"),
        ("gemma-3-1b", {"task": "token_classification"}, "no Gemma3TextForTokenClassification"),
        ("qwen3-0.6b", {"task": "embedding", "strategy": "fsdp", "num_gpus": 2}, "not modelled yet"),
        ("qwen3-0.6b", {"task": "embedding", "matryoshka_dims": (4096,)}, "1024 wide"),
        ("qwen3-0.6b", {"task": "embedding", "num_labels": 2}, "no meaning"),
        ("qwen3-0.6b", {"task": "reranker", "num_labels": 2}, "one label"),
        ("qwen3-0.6b", {"negatives": 2}, "no meaning"),
    ],
)
def test_what_is_not_modelled_is_refused(model: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, UnsupportedError), match=words):
        planned(model, **SAMPLES, **settings)


def test_the_command_line_takes_a_task() -> None:
    done = cli("suggest", "xlm-roberta-base", "--gpu", "rtx4090", "--global-batch", "32", "--task", "embedding", "-v")
    assert "XLMRobertaModel" in done.stdout.replace("\n", "")


def test_ms_swift_classifies(tmp_path: Path) -> None:
    line = "swift sft --model Qwen/Qwen2.5-7B --task_type {} --num_labels 3 --train_type lora --max_length 512"
    file = tmp_path / "run.sh"
    file.write_text(line.format("seq_cls"))
    verdict = vramplan.check(file, gpu="a100-80gb")
    assert (verdict.estimate.job.task, verdict.estimate.job.num_labels) == ("sequence_classification", 3)
    file.write_text(line.format("generative_reranker"))
    with pytest.raises(UnsupportedError, match="task_type"):
        vramplan.check(file, gpu="a100-80gb")


def test_a_job_with_a_task_reads_back() -> None:
    job = Job(task="embedding", matryoshka_dims=(768, 64))
    assert Job.model_validate_json(job.model_dump_json()) == job
