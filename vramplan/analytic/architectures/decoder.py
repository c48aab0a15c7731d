"""The parts of a causal language model, which :mod:`vramplan.analytic.architectures.causal_lm` runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.context import heads_of
from vramplan.analytic.layers.modules import Modules
from vramplan.dataclass import dataclass
from vramplan.inputs.model_spec import Config


class Rotary(NamedTuple):
    """Rotary tables: their width and dtype, and whether sliding layers have their own."""

    dim: int
    fp32: bool = False
    per_kind: bool = False
    per_row: bool = False
    """Whether each sample has positions of its own, because of images in the text."""
    pairs: bool = True
    """Whether each frequency is there twice."""
    is_complex: bool = False
    """Whether there is one table of complex numbers instead."""
    full_dim: int = 0
    """Their width in layers that do not slide, if it differs."""


Layer = Callable[..., "Tensor | tuple[Tensor, ...]"]
"""Takes modules, configuration, hidden state, context, kind and what is `beside` it. Returns the hidden state; BLOOM,
Falcon and GPT-J also their attention weights, which the model's loop holds."""
Part = Callable[[Modules, Config, Tensor], Tensor]
NormFunction = Callable[[Modules, str, Tensor], Tensor]


def full_rotary(c: Config) -> Rotary | None:
    """Rotary over the whole head."""
    return Rotary(heads_of(c).dim)


def embed_tokens(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """``model.embed_tokens(input_ids)``."""
    return net.embedding("model.embed_tokens", ids, c.count("vocab_size"), c.count("hidden_size"))


def rms_norm(net: Modules, name: str, x: Tensor) -> Tensor:
    """RMS norm, cast back before the weight."""
    return net.rms_norm(name, x)


def layer_norm(net: Modules, name: str, x: Tensor) -> Tensor:
    """LayerNorm with weight and bias."""
    return net.layer_norm(name, x)


def unchanged(net: Modules, c: Config, x: Tensor) -> Tensor:
    """`x` itself."""
    return x


def times(net: Modules, c: Config, x: Tensor) -> Tensor:
    """`x` times a number."""
    return ops.scale(x)


@dataclass(frozen=True, slots=True)
class Decoder:
    """Embedding, layers, final norm and head of a causal language model."""

    layer: Layer
    embed: Part = embed_tokens
    norm: NormFunction | None = rms_norm
    """The final norm."""
    norm_name: str = "model.norm"
    enter: Part = unchanged
    """From the embeddings to the first layer's input, if that is something else."""
    leave: Part = unchanged
    """From the last layer's output to the final norm's input."""
    beside: Callable[[Modules, Config], tuple[Tensor, ...]] = lambda net, c: ()
    """Other inputs of the layer that comes next."""
    before_head: Part = unchanged
    after_head: Part = unchanged
    head_bias: bool = False
    rotary: Callable[[Config], Rotary | None] = full_rotary
    window: Callable[[Config], int | None] = lambda c: None
    """Tokens that a sliding layer attends to."""
    chunked: bool = False
    """Whether that window is a chunk."""
    attention_dropout: tuple[str, float] = ("attention_dropout", 0.0)
    """Key of the dropout on attention probabilities, and transformers' default."""
    attention_dropout_is_layer: bool = False
    """Whether that is the probability of an nn.Dropout, which TRL's trainers set to 0."""
    both_ways: Callable[[Config], bool] = lambda c: False
    """Whether a token attends to those behind it as well, so that there is always a mask."""
    always_masked: bool = False
    """Whether SDPA gets a mask even if none is needed (Falcon)."""
    positions_in_mask: bool = True
    """Whether its mask is made with position ids, so that samples packed into one row do not attend to each other."""
