"""Scripts of sentence-transformers: embeddings (SentenceTransformerTrainer) and rerankers (CrossEncoderTrainer)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.frameworks.framework import ENGINES, Framework, Writer
from vramplan.frameworks.parsed_config import ParsedConfig, resolve_version
from vramplan.frameworks.readers import transformers_trainer
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers import python_scripts
from vramplan.inputs.embedding import SCORED

PACKAGE, NEWEST = "sentence-transformers", "6.2.0"
LOSSES: Mapping[str, str] = {
    "MultipleNegativesRankingLoss": "multiple_negatives",
    "CachedMultipleNegativesRankingLoss": "cached_multiple_negatives",
    "MultipleNegativesSymmetricRankingLoss": "symmetric",
    "CoSENTLoss": "cosent",
    "AnglELoss": "angle",
    "ContrastiveLoss": "contrastive",
    "OnlineContrastiveLoss": "online_contrastive",
    "MarginMSELoss": "margin_mse",
    "CosineSimilarityLoss": "cosine_similarity",
    "TripletLoss": "triplet",
}
"""Losses of embeddings -> the job's `embedding_loss`."""
DEFAULT_LOSS = "CoSENTLoss"
"""SentenceTransformerTrainer's (sentence_transformer/trainer.py: get_default_loss)."""
RERANKER_LOSSES = ("BinaryCrossEntropyLoss", "MSELoss")
"""Losses of one score for each pair; the trainer's own is the first (cross_encoder/trainer.py: get_default_loss)."""
CLASSIFIER_LOSS = "CrossEntropyLoss"
"""The loss of a CrossEncoder of several labels, which is the trainer's own."""
POOLING: Mapping[str, str] = {
    "baai/bge-": "cls",
    "mixedbread-ai/mxbai-embed-": "cls",
    "snowflake/snowflake-arctic-embed-": "cls",
    "alibaba-nlp/gte-": "cls",
    "qwen/qwen3-embedding-": "lasttoken",
}
"""Beginnings of models' names -> their pooling (1_Pooling/config.json of the published repositories); mean elsewhere,
or the last token of a decoder."""
SHORT = 514
"""Positions up to which a model's own limit is taken for the length of its texts."""


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a script around one of the library's trainers, which are transformers' Trainer with another loss."""
    version, where = resolve_version(PACKAGE, framework_version, NEWEST)
    parsed = transformers_trainer.read(config, num_gpus, None)
    parsed.framework, parsed.version = PACKAGE, f"{version} ({where})"
    config.require_off("use_liger_kernel", why="of an encoder is not modelled yet")
    if parsed.job.get("attention") == "flash":
        raise config.unsupported("attn_implementation", "joins all texts to one row, which is not modelled; use sdpa")
    is_reranker = config.string("trainer") == "CrossEncoderTrainer"
    parsed.job |= {"loss": "standard", "batches": "padded"}
    parsed.job |= _reranker(config) if is_reranker else _embedding(config, parsed)
    parsed.task = str(parsed.job["task"]).replace("_", " ")
    if parsed.job["method"] != "full":
        parsed.job["lora_dtype"] = parsed.job["dtype"]  # add_adapter() makes adapters of the weights' dtype
    parsed.names = {
        **parsed.names, "sequence_length": "max_seq_length", "mini_batch_size": "mini_batch_size"
    }  # fmt: skip
    positions = None if config.source.model is None else config.source.model.config.get("max_position_embeddings")
    if "sequence_length" not in parsed.job and isinstance(positions, int) and positions <= SHORT:
        config.note(
            "default",
            "max_seq_length",
            f"not set: {positions} tokens, the most that the model takes, are taken, not known; the data set decides:"
            " --dataset FILE or --seq-len",
        )
    elif "sequence_length" not in parsed.job:
        config.note(
            "doubt",
            "max_seq_length",
            "of the model, whose own files cut texts there; --seq-len gives it",
        )
    return parsed


def _reranker(config: ConfigReader) -> dict[str, Any]:
    """One score for each pair, or as many as there are labels: then it is trained as a classifier of pairs."""
    labels = config.integer("num_labels", default=1)
    losses = RERANKER_LOSSES if labels == 1 else (CLASSIFIER_LOSS,)
    loss = config.string("loss_class") or losses[0]
    if loss not in losses:
        of = "" if labels == 1 else f" of {labels} labels"
        raise config.unsupported(
            "loss_class", f"of a CrossEncoder{of} is not modelled yet; modelled: {', '.join(losses)}"
        )
    return {"task": "reranker"} if labels == 1 else {"task": "sequence_classification", "num_labels": labels}


def _embedding(config: ConfigReader, parsed: ParsedConfig) -> dict[str, Any]:
    name = config.string("loss_class") or DEFAULT_LOSS
    if name not in LOSSES:
        raise config.unsupported(
            "loss_class", f"of a SentenceTransformer is not modelled yet; modelled: {', '.join(LOSSES)}"
        )
    if not config.has("loss_class"):
        config.note("default", "loss", f"not set: {DEFAULT_LOSS}")
    fields: dict[str, Any] = {"task": "embedding", "embedding_loss": LOSSES[name]}
    fields |= _negatives(config, LOSSES[name])
    if LOSSES[name] == "cached_multiple_negatives":
        fields["mini_batch_size"] = config.integer("mini_batch_size", default=32)
    if config.has("matryoshka_dims"):
        sizes = config.strings("matryoshka_dims")
        if not all(size.isdecimal() and len(size) < 10 for size in sizes):
            raise config.invalid(("matryoshka_dims",), "whole numbers")
        fields["matryoshka_dims"] = tuple(int(size) for size in sizes)
    model = parsed.model.lower()
    pooling = config.string("pooling_mode") or next(
        (mode for start, mode in POOLING.items() if model.startswith(start)), None
    )
    return fields | ({} if pooling is None else {"pooling": pooling})


def _negatives(config: ConfigReader, loss: str) -> dict[str, int]:
    """Texts beside anchor and positive; triplets are taken if the script does not say."""
    if loss in SCORED:
        return {}
    if loss == "triplet":
        return {"negatives": 1}
    if not config.has("negatives"):
        config.note(
            "doubt",
            "negatives",
            "of each sample, whose columns are not in the script: each is one more text in every forward; one is taken"
            " (triplets); --dataset FILE counts them, --set negatives=N gives them",
        )
    return {"negatives": config.integer("negatives", default=1, least=0)}


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    inherits=("transformers", "scripts"),
    unknown_key="is no argument of sentence-transformers' trainers",
    writers=(
        Writer(
            PACKAGE,
            python_scripts.sentence_transformers,
            ENGINES[:-1],
            tasks=("embedding", "reranker"),
            writes_language_models=False,
        ),
    ),
)
