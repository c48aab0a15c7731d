"""A forward of ``generate`` without gradients, and the choice of a token, recorded on the tape.

Mirrors transformers 5.23: generation/utils.py (_prefill, _sample), generation/logits_process.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vramplan.analytic.architectures.causal_lm import decoder_of, language_model
from vramplan.analytic.architectures.forward_pass import ForwardPass
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import forward_pass, make_batch
from vramplan.analytic.layers.attention_kernels import WORKSPACE
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.step_record import StepRecord, record_of
from vramplan.analytic.train_step import declare, new_modules

SORT_BYTES = (8, 8, 24)
"""Bytes for each logit that torch.sort takes while it runs: indices with row numbers, twice, and cub's own (as torch
2.13 allocates them for 32 rows of 128,256 logits; aten/src/ATen/native/cuda/SortStable.cu sorts all rows at once)."""


class CachedForward(NamedTuple):
    """The record of a forward of ``generate``, and the storages of it that are keys and values."""

    record: StepRecord
    cached: frozenset[int]
    tensors: tuple[tuple[tuple[int, ...], str, int | None], ...]
    """Shape, dtype and layer of each of these."""


def simulate_forward(setting: StepSpec, past: int, caches: bool = True) -> CachedForward:
    """A forward of ``generate`` without gradients, and the choice of a token, with `past` tokens in the cache.

    Keys and values live on; so do the inputs of the prompt, which the caller holds. Not `caches`: nothing does, and
    every forward takes all tokens so far (``use_cache=False``).
    """
    net = new_modules(setting)
    tape, job = net.tape, setting.job
    tape.training, net.generates, net.decodes = False, True, past > 0
    phase = "decode" if past else "prefill"
    with tape.no_grad():
        batch = make_batch(tape, setting, phase, job.micro_batch_size)
        batch.inputs.pop("labels", None)
        forward = forward_pass(net, setting, phase, batch)
        forward.past, forward.caches = past, caches
        vocabulary = setting.architecture.shape(setting.config).vocabulary
        rows = (job.micro_batch_size, vocabulary)
        before = [tape.empty(rows, "fp32", f"{what} of the token before", "logits") for what in ("logits", "scores")]
        if not past and caches:
            before.clear()
        logits = last_logits(forward, setting)
        tape.module = "generate"
        before = [tape.empty(rows, "fp32", "logits of the last token in fp32", "logits"), *before][:1]
        scores = processed(tape.empty, rows)
        chances = tape.empty(rows, "fp32", "probabilities", "logits")
        del logits, chances, scores, before
        if past or not caches:
            tape.enter("end", None)
            del batch, forward
        record = record_of(tape)  # the caller holds the inputs of the prompt
    if setting.vision is not None and not setting.has_images:  # the tower is loaded all the same
        for key, parameter in declare(setting).tape.parameters.items():
            tape.parameters.setdefault(key, parameter)
        record = record._replace(weights=record_of(tape).weights)
    ids = [id for tensor in net.cache for id in tensor.storage.ids]  # type: ignore[union-attr]
    layer_of = _layers(record)
    return CachedForward(
        record,
        frozenset(ids),
        tuple((tensor.shape, tensor.dtype, layer_of(id)) for tensor, id in zip(net.cache, ids, strict=True)),
    )


def _layers(record: StepRecord) -> Callable[[int], int | None]:
    """A function from a storage's number to the layer that allocates it."""

    def layer_of(storage: int) -> int | None:
        return [one.layer for one in record.sections if one.first_storage <= storage][-1]

    return layer_of


def last_logits(forward: ForwardPass, setting: StepSpec) -> Tensor:
    """``model(..., logits_to_keep=1)``: the head for the last position alone, a view of all hidden states."""
    net, c, architecture, decoder = forward.net, setting.config, setting.architecture, decoder_of(forward)
    hidden = decoder.before_head(net, c, language_model(forward, c))
    batch, _, width = hidden.shape
    last = Tensor(net.tape, hidden.storage, (batch, 1, width), hidden.dtype)
    head = net.head(last, architecture.shape(c).vocabulary, architecture.is_tied(c), decoder.head_bias)
    return decoder.after_head(net, c, head)


def processed(empty: Callable[..., Tensor], rows: tuple[int, int]) -> Tensor:
    """Temperature, top-k and top-p (generation/logits_process.py: TopPLogitsWarper has the most tensors)."""
    scores = empty(rows, "fp32", "logits over temperature", "logits")
    removed = empty(rows, "bool", "logits below the top-k", "logits")
    scores = empty(rows, "fp32", "top-k logits", "logits")
    del removed
    ordered, indices = empty(rows, "fp32", "sorted logits", "logits"), empty(rows, "int64", "their indices", "logits")
    sorting = [empty((*rows, width), "uint8", "workspace of the sort", WORKSPACE) for width in SORT_BYTES]
    del sorting
    chances = empty(rows, "fp32", "sorted probabilities", "logits")
    sums = empty(rows, "fp32", "sums of sorted probabilities", "logits")
    del chances
    removed, scattered = (empty(rows, "bool", "logits below the top-p", "logits") for _ in range(2))
    return empty(rows, "fp32", "top-p logits", "logits")
