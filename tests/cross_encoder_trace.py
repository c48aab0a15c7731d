"""CrossEncoderTrainer of sentence-transformers on fake tensors, for tests/cases/cross_encoders.json.

`python -m tests.cross_encoder_trace` runs all cases anew (sentence-transformers 6.2).
"""

from __future__ import annotations

import json
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests import trl_trace
from tests.helpers import card_of, spec_of
from tests.test_cross_encoders import CASES, GPU, LAYERS
from tests.trl_trace import Setup, TrlRun, ones
from vramplan.inputs.job import Job
from vramplan.torch_backend.dtypes import DTYPES

SMALL: dict[str, Any] = {"task": "reranker", "method": "full", "sequence_length": 128, "micro_batch_size": 8}
LABELS: dict[str, Any] = {"task": "sequence_classification", "num_labels": 3, "batches": "padded"}
ROWS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("google-bert/bert-base-uncased", {}, {"loss": "BinaryCrossEntropyLoss"}),
    ("google-bert/bert-base-uncased", {"checkpointing": "none"}, {"loss": "MSELoss"}),
    ("FacebookAI/roberta-base", {"checkpointing": "none", "dtype": "fp32"}, {"loss": "BinaryCrossEntropyLoss"}),
    ("Qwen/Qwen3-0.6B", {"checkpointing": "none"}, {"loss": "BinaryCrossEntropyLoss"}),
    ("Qwen/Qwen3-0.6B", {"autocast": "none"}, {"loss": "BinaryCrossEntropyLoss"}),
    ("google-bert/bert-base-uncased", {**LABELS}, {"loss": "CrossEntropyLoss"}),
    ("FacebookAI/roberta-base", {**LABELS, "checkpointing": "none"}, {"loss": "CrossEntropyLoss"}),
)
"""A model of three layers, the job, the loss."""


class Scores(Setup):
    """CrossEncoder with one label, and its trainer."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        from datasets import Dataset
        from sentence_transformers.cross_encoder import (
            CrossEncoder,
            CrossEncoderTrainer,
            CrossEncoderTrainingArguments,
            losses,
        )

        options = dict(self.options)
        loss = options.pop("loss")
        self.options = options
        with TemporaryDirectory() as place, torch.device("cpu"):
            model.save_pretrained(place)
            words.save_pretrained(place)
            encoder = CrossEncoder(
                place, device="cpu", num_labels=self.job.num_labels or 1, model_kwargs={"dtype": DTYPES[self.job.dtype]}
            )
        inner: Any = encoder[0].auto_model
        inner.config._attn_implementation = self.job.attention
        encoder.to("meta")
        rows = self.job.micro_batch_size, self.job.sequence_length

        def tokenized(pairs: Any, **options: Any) -> dict[str, torch.Tensor]:
            return {name: torch.empty(rows, dtype=torch.int64) for name in ("input_ids", "attention_mask")}

        arguments = self.arguments(folder)
        arguments.pop("gradient_checkpointing_kwargs")
        row = {"query": "w3", "answer": "w4", "label": 1.0}
        trainer = CrossEncoderTrainer(
            model=encoder,
            args=CrossEncoderTrainingArguments(**arguments),
            train_dataset=Dataset.from_list([row, row]),
            loss=getattr(losses, loss)(encoder),
        )
        encoder.preprocess = tokenized  # not before: the trainer counts tokens of samples for its model card
        return trainer

    def batch(self) -> dict[str, Any]:
        rows = self.job.micro_batch_size
        return {"query": ones(rows), "answer": ones(rows), "label": torch.ones(rows)}


class ScoresRun(TrlRun):
    """One tracked run of the trainer."""

    def _on_device(self, tensor: torch.Tensor) -> Any:
        """Texts stay words: the loss makes tokens of them."""
        if tensor.is_floating_point() and self.job.num_labels:
            return torch.empty(tensor.shape, dtype=torch.int64)
        return super()._on_device(tensor) if tensor.is_floating_point() else ["w3"] * len(tensor)

    def _model(self) -> nn.Module:
        from transformers import AutoModelForSequenceClassification

        from vramplan.torch_backend.model.build import _transformers_config

        config = _transformers_config(self.spec, self.job, False)
        config.num_labels = self.job.num_labels or 1
        made: nn.Module = AutoModelForSequenceClassification.from_config(
            config, attn_implementation=self.job.attention, dtype=DTYPES[self.job.dtype]
        )
        return made


def run(model: str, job: Job, options: dict[str, Any]) -> dict[str, int]:
    """Peak of live tensors in each phase, in bytes."""
    with patch.dict(trl_trace.SETUPS, {"reranker": Scores}):
        return ScoresRun(spec_of(model, **LAYERS), job, card_of(GPU), "reranker", **options).go()


def main() -> int:
    """Write all runs."""
    lines = []
    for model, job, options in ROWS:
        row = {"model": model, "job": {**SMALL, **job}, "options": options}
        lines.append(json.dumps({**row, "peaks": run(model, Job(**row["job"]), options)}))  # type: ignore[arg-type]
    CASES.write_text("[\n " + ",\n ".join(lines) + "\n]\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
