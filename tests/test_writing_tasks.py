"""`suggest --for` of classifiers, embeddings and rerankers: what is written is read back as the same job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramplan import check, suggest
from vramplan.errors import VramplanError
from vramplan.planner.export import export

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
    read = check(path, gpu="rtx4090", num_gpus=job.num_gpus, settings=told)
    again = read.estimate.job
    names = (*settings, "sequence_length", "micro_batch_size", "batches", "dtype", "autocast", "lora_targets", "method")
    assert {name: getattr(again, name) for name in names} == {name: getattr(job, name) for name in names}
    assert again.global_batch_size == 16


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
