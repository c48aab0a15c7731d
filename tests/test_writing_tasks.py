"""`suggest --for` of classifiers, embeddings and rerankers: what is written is read back as the same job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import card_of, spec_of
from vramplan import check, suggest
from vramplan.errors import VramplanError
from vramplan.frameworks.detect import from_text
from vramplan.frameworks.write import write
from vramplan.planner.check import read
from vramplan.planner.export import export
from vramplan.planner.job_defaults import complete_job

ENCODER, DECODER = "bert-base-uncased", "qwen3-0.6b"
FULL: dict[str, Any] = {"method": "full"}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("transformers", ENCODER, {"task": "sequence_classification", **FULL, "num_labels": 5}),
    ("transformers", DECODER, {"task": "sequence_classification", "quantize": "nf4"}),
    ("transformers", DECODER, {"task": "token_classification", "strategy": "zero2", "num_gpus": 2}),
    ("transformers", ENCODER, {"task": "token_classification", **FULL, "checkpointing": "none", "num_gpus": 2}),
    ("swift", DECODER, {"task": "sequence_classification", "num_labels": 3}),
    ("swift", DECODER, {"task": "embedding", "joins_texts": True, "negatives": 2}),
    ("swift", DECODER, {"task": "embedding", "joins_texts": True, "embedding_loss": "contrastive"}),
    ("swift", DECODER, {"task": "reranker", "negatives": 4}),
    ("sentence-transformers", "bge-base-en-v1.5", {"task": "embedding", **FULL, "negatives": 1}),
    ("sentence-transformers", DECODER, {"task": "embedding", "lora_dtype": "bf16", "matryoshka_dims": (256, 64)}),
    ("sentence-transformers", ENCODER, {"task": "embedding", **FULL, "pooling": "cls", "embedding_loss": "cosent"}),
    ("sentence-transformers", ENCODER, {"task": "embedding", **FULL, "embedding_loss": "cached_multiple_negatives"}),
    ("sentence-transformers", ENCODER, {"task": "reranker", **FULL}),
]


@pytest.mark.parametrize(("framework", "model", "settings"), CASES)
def test_what_is_written_comes_back(tmp_path: Path, framework: str, model: str, settings: dict[str, Any]) -> None:
    found = suggest(model, "rtx4090", 16, sequence_length=256, batches="padded", advice=False, **settings).recommended
    assert found is not None
    job = found.estimate.job
    written = export(framework, model, job, "rtx4090")
    assert written.notes == []
    path = tmp_path / ("train.sh" if framework == "swift" else "train.py")
    path.write_text(written.text)
    told = {"negatives": str(job.negatives)} if "negatives" in settings and framework == "swift" else {}
    told |= {"nproc_per_node": str(job.num_gpus)} if job.num_gpus > 1 else {}  # by torchrun, in the first line
    again = check(path, gpu="rtx4090", num_gpus=job.num_gpus, settings=told, look_further=False).estimate.job
    names = (*settings, "sequence_length", "micro_batch_size", "batches", "dtype", "autocast", "lora_targets", "method")
    assert {name: getattr(again, name) for name in names} == {name: getattr(job, name) for name in names}
    assert again.global_batch_size == 16


@pytest.mark.parametrize("task", ["reward", "dpo", "kto", "grpo"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_file_for_trl_says_its_task(task: str, method: str) -> None:
    """By the command at its top, and of a reward model with adapters by its keys alone."""
    settings = {"sequence_length": 256, "prompt_length": 128} if task == "grpo" else {"sequence_length": 256}
    spec = spec_of("Qwen/Qwen3-0.6B")
    job = complete_job(spec, card_of(), {"task": task, "method": method, "batches": "padded", **settings})
    text = str(write("trl", spec.name, job))
    for written in (text, text.split("\n", 1)[1])[: 2 if (task, method) == ("reward", "lora") else 1]:
        reading = read(from_text(written, Path("train.yaml"), None, {}), 1)
        assert (reading.framework, reading.job["task"], reading.job["method"]) == ("trl", task, method)


@pytest.mark.parametrize(
    ("comment", "keys", "task"),
    [
        ("# trl kto --config train.yaml", "", "kto"),
        ("# Recipe.\n# accelerate launch trl/scripts/reward.py --config train.yaml", "", "reward"),
        ("# trl sft --config train.yaml", "", None),
        ("# trl sft --config train.yaml", "num_generations: 8\n", "grpo"),  # its keys say another trainer
        ("# trl kto --config a.yaml\n# trl dpo --config a.yaml", "", None),
        ("# not for trl dpo", "", None),
    ],
)
def test_the_command_in_a_comment(comment: str, keys: str, task: str | None) -> None:
    text = f"{comment}\nmodel_name_or_path: a/b\ndtype: bfloat16\nuse_peft: true\nmax_length: 512\n{keys}"
    assert read(from_text(text, Path("train.yaml"), None, {}), 1).job.get("task") == task


@pytest.mark.parametrize(
    ("framework", "model", "settings", "said"),
    [
        ("axolotl", DECODER, {"task": "embedding"}, "written for swift, sentence-transformers"),
        ("transformers", ENCODER, {"task": "embedding"}, "written for swift, sentence-transformers"),
        ("trl", DECODER, {"task": "sequence_classification"}, "written for swift, transformers"),
        ("sentence-transformers", DECODER, {}, "trains no language models"),
        ("sentence-transformers", DECODER, {"task": "reranker"}, "method=full"),
        ("swift", ENCODER, {"task": "embedding", **FULL}, "sentence-transformers trains them"),
    ],
)
def test_the_error_names_the_frameworks_that_do(
    framework: str, model: str, settings: dict[str, Any], said: str
) -> None:
    job = {"sequence_length": 128, "batches": "padded", **settings}
    found = suggest(model, "rtx4090", 8, advice=False, **job).recommended
    assert found is not None
    with pytest.raises(VramplanError, match=said):
        export(framework, model, found.estimate.job, "rtx4090")
