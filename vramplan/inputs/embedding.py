"""The texts of a sample that trains an embedding, and how their states become vectors (sentence-transformers 6.2)."""

from __future__ import annotations

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import Pooling
from vramplan.inputs.model_spec import Config
from vramplan.inputs.tasks import RERANKERS

SETTINGS = ("embedding_loss", "joins_texts", "mini_batch_size", "matryoshka_dims", "pooling")
"""Fields of a job that only embeddings have."""
SCORED = ("cosent", "angle", "cosine_similarity", "contrastive", "online_contrastive")
"""Losses of pairs with a score."""

CACHED = "cached_multiple_negatives"
"""The loss that runs `mini_batch_size` texts of a micro-batch at a time and has all of it as negatives."""
IN_BATCH = {
    "multiple_negatives": "CachedMultipleNegativesRankingLoss",
    "symmetric": "CachedMultipleNegativesSymmetricRankingLoss",
}
"""Losses that take the other samples of a micro-batch as negatives -> the loss of sentence-transformers that has the
same negatives and runs a part of them at a time."""


def is_embedding_gemma(model_type: str, c: Config) -> bool:
    """Whether a model is EmbeddingGemma: a Gemma 3 that reads both ways, with two layers behind its pooling."""
    return model_type == "gemma3_text" and c.get("use_bidirectional_attention") is True


def dense_widths(width: int) -> tuple[int, int]:
    """Widths of EmbeddingGemma's two layers behind its pooling, without bias (its files 2_Dense and 3_Dense)."""
    return 4 * width, width


def pooling_of(job: Job, reads_both_ways: bool) -> Pooling:
    """How a text's states become one vector; a decoder's last token alone has read all others."""
    return job.pooling or ("mean" if reads_both_ways else "lasttoken")


def columns(job: Job) -> list[str]:
    """The texts of a sample, by their columns' names."""
    return ["anchor", "positive", *(f"negative_{number + 1}" for number in range(job.negatives))]


def check_embedding(job: Job, width: int) -> None:
    """Check the settings of an embedding, and that no other task has them.

    Raises:
        ConfigError: for a setting without meaning, and for a width that the model does not have.
        UnsupportedError: for a combination that is not modelled.
    """
    if job.task != "embedding":
        for name in (*SETTINGS, *(() if job.task in RERANKERS else ("negatives",))):
            if getattr(job, name) != Job.model_fields[name].default:
                raise ConfigError(f"{setting(name)} has no meaning without {setting('task', 'embedding')}")
        return
    loss = setting("embedding_loss", job.embedding_loss)
    if job.embedding_loss in SCORED and job.negatives:
        raise ConfigError(f"{setting('negatives', job.negatives)}: {loss} is of pairs with a score")
    if job.embedding_loss == "triplet" and job.negatives != 1:
        raise ConfigError(
            f"{setting('negatives', job.negatives)}: {loss} is of triplets; give {setting('negatives', 1)}"
        )
    if job.embedding_loss == "margin_mse" and not job.negatives:
        raise ConfigError(f"{loss} compares a positive with negative texts; give {setting('negatives', 1)}")
    if job.joins_texts:
        _check_joined(job, loss)
    for size in job.matryoshka_dims or ():
        if not 0 < size <= width:
            raise ConfigError(f"{setting('matryoshka_dims', size)}: the model's vectors are {width} wide")
    if job.strategy not in ("ddp", "zero0", "zero1", "zero2", "zero3"):
        raise UnsupportedError(
            f"{setting('strategy', job.strategy)} with {setting('task', 'embedding')} is not modelled yet; use"
            f" {setting('strategy', 'zero2')}"
        )
    if job.strategy == "zero3" and (job.embedding_loss == CACHED or (job.reentrant and not job.joins_texts)):
        other = loss if job.embedding_loss == CACHED else setting("reentrant", True)
        raise UnsupportedError(
            f"{setting('strategy', 'zero3')} with {setting('task', 'embedding')} and {other}: several backwards of a"
            f" micro-batch were not compared with a run; use {setting('strategy', 'zero2')}"
        )


JOINED = ("multiple_negatives", "cosine_similarity", "contrastive", "online_contrastive")
"""Losses that ms-swift has."""


def _check_joined(job: Job, loss: str) -> None:
    """What ms-swift's trainer of embeddings does not do, or what is not modelled of it."""
    joined = setting("joins_texts", True)
    if job.embedding_loss not in JOINED:
        raise ConfigError(f"{joined}: ms-swift has no {loss}")
    if job.matryoshka_dims is not None:
        raise UnsupportedError(f"{joined} with {setting('matryoshka_dims')} is not modelled yet")
    if job.pooling not in (None, "lasttoken"):
        raise ConfigError(f"{joined}: ms-swift takes each text's last token, not {setting('pooling', job.pooling)}")
    if job.loop == "plain":
        raise ConfigError(f"{joined}: ms-swift has transformers' Trainer; use {setting('loop', 'trainer')}")


LOSSES = {
    "multiple_negatives": "MultipleNegativesRankingLoss",
    "cached_multiple_negatives": "CachedMultipleNegativesRankingLoss",
    "symmetric": "MultipleNegativesSymmetricRankingLoss",
    "cosent": "CoSENTLoss",
    "angle": "AnglELoss",
    "cosine_similarity": "CosineSimilarityLoss",
    "contrastive": "ContrastiveLoss",
    "online_contrastive": "OnlineContrastiveLoss",
    "triplet": "TripletLoss",
    "margin_mse": "MarginMSELoss",
}
"""sentence-transformers' names."""


def describe_embedding(job: Job, reads_both_ways: bool) -> str:
    """Loss, texts and pooling in words."""
    loss, others = LOSSES[job.embedding_loss], f" and {job.negatives} negatives" if job.negatives else ""
    if job.joins_texts:
        own = "InfoNCE" if job.embedding_loss == "multiple_negatives" else loss
        return f"{own} of ms-swift, pairs{others} in one forward, each text as long, lasttoken pooling"
    if job.embedding_loss == CACHED:
        loss += f" by {job.mini_batch_size} texts"
    if job.matryoshka_dims is not None:
        loss = f"MatryoshkaLoss of {', '.join(map(str, job.matryoshka_dims))} over {loss}"
    return f"{loss} of pairs{others}, each text as long, {pooling_of(job, reads_both_ways)} pooling"
