"""Cached gradients with and without widths of MatryoshkaLoss, against traces of sentence-transformers' own losses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import card_of, spec_of
from vramplan.analytic import estimator
from vramplan.inputs.job import Job

CACHED = {
    "task": "embedding", "embedding_loss": "cached_multiple_negatives", "method": "full", "checkpointing": "none",
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize(
    "given",
    [
        {"negatives": 1, "matryoshka_dims": (768, 256, 64), "micro_batch_size": 64, "sequence_length": 64},
        {"negatives": 0, "matryoshka_dims": (768, 128), "micro_batch_size": 96, "sequence_length": 32},
        {"negatives": 2, "micro_batch_size": 128, "sequence_length": 16},
    ],
)
def test_peaks_agree_with_a_trace(given: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sentence_transformers")
    from vramplan.torch_backend import tracing

    spec, job = (
        spec_of("google-bert/bert-base-uncased", num_hidden_layers=2),
        Job(**CACHED, mini_batch_size=16, **given),
    )
    traced, found = (one.estimate(spec, job, card_of()).phases for one in (tracing(), estimator))
    assert max(abs(found[phase] / size - 1) for phase, size in traced.items()) < 0.015


def test_the_loss_of_many_short_texts_takes_more_than_their_forward() -> None:
    """All vectors of the other texts: by column, joined, normalised, and four gradients of them."""
    spec = spec_of("google-bert/bert-base-uncased", num_hidden_layers=2)
    sizes = []
    for samples in (2048, 4096):
        job = Job(**CACHED, mini_batch_size=32, negatives=1, micro_batch_size=samples, sequence_length=8)
        sizes.append(estimator.estimate(spec, job, card_of()).phases["forward"])
    assert sizes[1] - sizes[0] > 7 * 2 * 2048 * 768 * 4
