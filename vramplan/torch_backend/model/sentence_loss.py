"""sentence-transformers' losses around a model of transformers: its own pooling and losses, called as its trainer does.

The package's own SentenceTransformer loads tokenizers and files; here a module with the same forward stands for it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from vramplan.errors import MissingDependencyError, setting
from vramplan.inputs.embedding import LOSSES, columns, dense_widths, pooling_of
from vramplan.inputs.job import Job
from vramplan.torch_backend.dtypes import DTYPES


class Embedder(nn.Module):
    """One forward of a SentenceTransformer, whose outputs accelerate converts."""

    def __init__(self, model: nn.Module, pooling: nn.Module, dense: nn.Module, job: Job, device_type: str) -> None:
        super().__init__()
        self.model, self.pooling, self.dense, self.job, self.device_type = model, pooling, dense, job, device_type

    def forward(self, features: dict[str, Any]) -> Any:
        """The features with the texts' vectors."""
        job = self.job
        with torch.autocast(self.device_type, dtype=DTYPES.get(job.autocast, torch.bfloat16), enabled=job.casts):
            outputs = self.model(input_ids=features["input_ids"], attention_mask=features["attention_mask"])
            features["token_embeddings"] = outputs[0]
            del outputs
            features = self.dense(self.pooling(features))
        if job.loop == "trainer" and job.casts:
            from accelerate.utils.operations import convert_to_fp32

            return convert_to_fp32(features)
        return features

    def __getitem__(self, place: int) -> nn.Module:
        """The module at a place, as in SentenceTransformer."""
        return (self.model, self.pooling)[place]

    def get_embedding_dimension(self) -> int:
        """Width of the vectors."""
        return int(self.pooling.embedding_dimension)


def whole_rows(features: dict[str, torch.Tensor], begin: int, end: int) -> dict[str, torch.Tensor]:
    """A mini-batch of texts that are all equally long."""
    return {name: value[begin:end] for name, value in features.items()}


class SentenceLoss(nn.Module):
    """The loss of texts in columns."""

    accepts_loss_kwargs = False
    """SentenceTransformerTrainer counts no items."""

    def __init__(self, model: nn.Module, job: Job, reads_both_ways: bool, has_dense: bool, device_type: str) -> None:
        """Wrap a model; `has_dense`: with EmbeddingGemma's layers behind the pooling.

        Raises:
            MissingDependencyError: if sentence-transformers is not installed.
        """
        super().__init__()
        try:
            from sentence_transformers.sentence_transformer import losses
            from sentence_transformers.sentence_transformer.modules import Dense, Pooling
        except ImportError as error:
            raise MissingDependencyError(
                f"{setting('task', 'embedding')}: a trace runs sentence-transformers' own losses:"
                ' pip install "sentence-transformers>=6.2"'
            ) from error
        inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
        pooling = Pooling(inner.config.hidden_size, pooling_mode=pooling_of(job, reads_both_ways))
        dense, width = nn.Sequential(), inner.config.hidden_size
        if has_dense:
            weight = next(inner.parameters())
            with torch.device(weight.device):
                for given, made in pairwise((width, *dense_widths(width))):
                    dense.append(Dense(given, made, bias=False, activation_function=nn.Identity()).to(weight.dtype))
        embedder: Any = Embedder(model, pooling, dense, job, device_type)
        self.job = job
        if job.embedding_loss != "cached_multiple_negatives":
            self.loss: nn.Module = getattr(losses, LOSSES[job.embedding_loss])(embedder)
            if hasattr(self.loss, "_checked_labels"):  # the first labels are read, to warn of others than 0 and 1
                self.loss._checked_labels = True
        else:
            from sentence_transformers.base.losses import gradcache

            gradcache._create_minibatch = whole_rows  # its own asks for the longest text, which a trace does not know
            self.loss = losses.CachedMultipleNegativesRankingLoss(embedder, mini_batch_size=job.mini_batch_size)
        if job.matryoshka_dims is not None:
            self.loss = losses.MatryoshkaLoss(embedder, self.loss, list(job.matryoshka_dims))

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """The loss of a micro-batch."""
        features = [
            {name: inputs[f"{column}_{name}"] for name in ("input_ids", "attention_mask")}
            for column in columns(self.job)
        ]
        return self.loss(features, inputs.get("labels"))
