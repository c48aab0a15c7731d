"""Checks that verl's GPUs can share the tokens of a model's micro-batches."""

from __future__ import annotations

from math import gcd

from vramplan.analytic.architectures.lookup import ModelArchitecture
from vramplan.analytic.layers.context import LayerKind, heads_of
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec

KEY = "ulysses_sequence_parallel_size"


SWIFT = "sequence_parallel_size"
WHOLE = "nearest, whole texts on each GPU, which needs more: 1"


def check_shared_texts(spec: ModelSpec, model: ModelArchitecture, job: Job) -> None:
    """Check a model whose texts ms-swift's GPUs share by heads alone, without ring attention.

    Raises:
        ConfigError: for GPUs that do not divide the heads of the keys, where ms-swift stops without padding_free (4.6,
            sequence_parallel.py: prepare).
        UnsupportedError: for the same with it, for layers without attention, and for images.
    """
    gpus = job.swift.sequence_parallel
    if gpus == 1:
        return
    if model.tower is not None or model.architecture.decoder is None:
        raise UnsupportedError(f"{SWIFT} {gpus}: {spec.name} is no causal language model of text alone; {WHOLE}")
    if any(not isinstance(kind, LayerKind) or kind.recurrent or kind.feeds for kind in model.stacks()[0]):
        raise UnsupportedError(
            f"{SWIFT} {gpus}: layers without attention of {spec.model_type} are not modelled; {WHOLE}"
        )
    _, keys, _ = heads_of(model.config)
    by_heads = gcd(keys, gpus)
    if by_heads == gpus:
        return
    text = f"{SWIFT} {gpus}: {spec.name} has {keys} heads of keys, so that {by_heads} GPUs would share them and"
    if not job.joins_samples:
        raise ConfigError(
            f"{text} {gpus // by_heads} attend in a ring: ms-swift stops at that without padding_free; give {by_heads}"
        )
    raise UnsupportedError(
        f"{text} {gpus // by_heads} attend in a ring, which is not modelled yet; nearest, with more tokens on each GPU:"
        f" {by_heads}"
    )


def check_sequence_parallel(spec: ModelSpec, model: ModelArchitecture, job: Job) -> None:
    """Check a model whose tokens several GPUs share: each has whole heads.

    Raises:
        ConfigError: where verl stops (0.9.1, models/transformers/monkey_patch.py: apply_monkey_patch).
        UnsupportedError: for layers without attention, which do not exchange their tokens, and for images.
    """
    for gpus in {job.verl.sequence_parallel, job.verl.reference_sequence_parallel or 1} - {1}:
        if model.tower is not None or model.architecture.decoder is None:
            raise UnsupportedError(
                f"{KEY} {gpus}: {spec.name} is no causal language model of text alone; use 1, as is modelled"
            )
        if any(not isinstance(kind, LayerKind) or kind.recurrent or kind.feeds for kind in model.stacks()[0]):
            raise UnsupportedError(
                f"{KEY} {gpus}: {spec.model_type} has layers without attention, whose tokens are not shared; use 1"
            )
        query, key, _ = heads_of(model.config)
        if query % gpus or (key % gpus and gpus % key):
            raise ConfigError(
                f"{KEY} {gpus}: {spec.name} has {query} heads of queries and {key} of keys, which {gpus} GPUs cannot"
                " share: verl stops at that"
            )
