"""The texts of a sample that trains an embedding, and how their states become vectors (sentence-transformers 6.2)."""

from __future__ import annotations

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.inputs.job import Job, Pooling

SETTINGS = ("embedding_loss", "negatives", "mini_batch_size", "matryoshka_dims", "pooling")
"""Fields of a job that only embeddings have."""


SCORED = ("cosent", "cosine_similarity")
"""Losses of pairs with a score."""


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
        for name in SETTINGS:
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
    for size in job.matryoshka_dims or ():
        if not 0 < size <= width:
            raise ConfigError(f"{setting('matryoshka_dims', size)}: the model's vectors are {width} wide")
    if job.embedding_loss == "cached_multiple_negatives" and job.matryoshka_dims is not None:
        raise UnsupportedError(f"{loss} with {setting('matryoshka_dims')} is not modelled yet")
    if job.strategy not in ("ddp", "zero0", "zero1", "zero2"):
        raise UnsupportedError(
            f"{setting('strategy', job.strategy)} with {setting('task', 'embedding')} is not modelled yet; use"
            f" {setting('strategy', 'ddp')}"
        )


LOSSES = {
    "multiple_negatives": "MultipleNegativesRankingLoss",
    "cached_multiple_negatives": "CachedMultipleNegativesRankingLoss",
    "cosent": "CoSENTLoss",
    "cosine_similarity": "CosineSimilarityLoss",
    "triplet": "TripletLoss",
}
"""sentence-transformers' names."""


def describe_embedding(job: Job, reads_both_ways: bool) -> str:
    """Loss, texts and pooling in words."""
    loss, others = LOSSES[job.embedding_loss], f" and {job.negatives} negatives" if job.negatives else ""
    if job.embedding_loss == "cached_multiple_negatives":
        loss += f" by {job.mini_batch_size} texts"
    if job.matryoshka_dims is not None:
        loss = f"MatryoshkaLoss of {', '.join(map(str, job.matryoshka_dims))} over {loss}"
    return f"{loss} of pairs{others}, each text as long, {pooling_of(job, reads_both_ways)} pooling"
