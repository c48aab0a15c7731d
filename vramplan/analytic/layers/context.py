"""Arguments of a layer besides its input: its kind, and the tables, masks and cache that all layers share."""

from __future__ import annotations

from dataclasses import field, replace
from typing import NamedTuple

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.dataclass import dataclass
from vramplan.errors import SpecError
from vramplan.inputs.model_spec import Config
from vramplan.memory.fused_attention import FusedAttention


class LayerKind(NamedTuple):
    """Properties in which the layers of one model differ."""

    sliding: bool = False
    rotary: bool = True
    crosses: bool = False
    """Whether it attends to images instead of the text (Llama 3.2 Vision); skipped if there are no images."""
    dense: bool = False
    """Whether it has one feed-forward layer for all tokens, in a model with MoE layers."""
    recurrent: bool = False
    """Whether it mixes tokens by linear attention, a state space or a convolution instead of attention."""
    hybrid: bool = False
    """Whether a recurrent layer attends too (Falcon-H1)."""
    feeds: bool = False
    """Whether it is a feed-forward or a mixture of experts alone (Nemotron-H)."""
    sparse: bool = False
    """Whether a gate below a quantile is cut off (Gemma 3n)."""
    shares: str = ""
    """``store``: later layers take its keys and values; ``reuse``: it takes an earlier one's (Gemma 3n, Gemma 4)."""

    heads: int = 0
    """Query heads, where layers differ in them (Laguna)."""

    @property
    def attends(self) -> bool:
        """Whether it takes a mask of attention."""
        return self.hybrid or not (self.recurrent or self.feeds)


class CrossAttentionInput(NamedTuple):
    """Images as the input of cross-attention layers."""

    states: Tensor
    """(tiles of the batch, keys of a tile, width)."""
    mask: Tensor
    """(batch, 1, length, keys of a sample), additive."""
    rows: Tensor
    """(batch, length, 1): 0 for tokens before the first image."""


@dataclass(slots=True)
class Context:
    """Arguments that all layers share in one forward."""

    attention: str
    """eager, sdpa or flash."""
    fused: FusedAttention
    """The kernels that SDPA may choose on the GPU."""
    liger_rope: bool = False
    """Whether Liger's kernel rotates queries and keys."""
    cos: dict[bool, Tensor] = field(default_factory=dict)
    """Cosine table by `LayerKind.sliding`; most models share one."""
    sin: dict[bool, Tensor] = field(default_factory=dict)
    masks: dict[bool, Tensor | None] = field(default_factory=dict)
    """Attention mask by `LayerKind.sliding`; None if no mask is built."""
    row_mask: Tensor | None = None
    """The batch's 2D attention mask, (B, S, 1), for layers without attention; None if no sample is padded."""
    mixer_packages: bool = False
    """Whether the kernels of other packages compute layers without attention."""
    positions: Tensor | None = None
    padded: bool = False
    sequence_parallel: int = 1
    """GPUs that share the tokens."""
    shares_rows: bool = False
    """Whether they share those of each row, as in ms-swift."""
    causal: bool = False
    """Whether a token attends only to those before it."""
    repeats_heads: bool = False
    """Whether keys and values are copied for every query head, mask or not (torchtune 0.6.1, modules/attention.py)."""
    copies_heads: bool = False
    """The same in front of FlashAttention, of Qwen2-VL in verl."""
    joins_rows: bool = False
    """Whether these copies are made contiguous, as the samples of a row are told apart."""
    positions_of_images: int = 1
    """Tables of cosines and sines, which each layer joins to one if they are several."""
    attention_dropout: float = 0.0
    cache: list[Tensor] | None = None
    """Keys and values of all layers, if the model fills a cache (DynamicCache.update concatenates them to its own)."""
    past: dict[bool, int] = field(default_factory=dict)
    """Tokens in the cache before this forward, by `LayerKind.sliding`."""
    shared: dict[bool, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Keys and values that several layers take, by `LayerKind.sliding`; one dictionary for all layers."""
    crossing: CrossAttentionInput | None = None
    """Images, if the model has cross-attention layers; an argument of every layer."""

    def of(self, kind: LayerKind) -> Context:
        """The arguments of a layer of `kind`: if checkpointed, it keeps its mask and tables alive and no others."""
        sliding = (kind.sliding,)
        masks = self.masks if kind.attends else {}
        return replace(
            self,
            row_mask=self.row_mask if kind.recurrent else None,
            cos={key: table for key, table in self.cos.items() if key in sliding},
            sin={key: table for key, table in self.sin.items() if key in sliding},
            masks={key: mask for key, mask in masks.items() if key in sliding},
        )

    def on(self, card: int) -> Context:
        """Copies on a layer's GPU of the tensors that are on another one (accelerate copies them for every layer)."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else ops.move(tensor, card)

        return replace(
            self,
            cos={key: ops.move(table, card) for key, table in self.cos.items()},
            sin={key: ops.move(table, card) for key, table in self.sin.items()},
            masks={key: moved(mask) for key, mask in self.masks.items()},
            positions=moved(self.positions),
        )


class Heads(NamedTuple):
    """Number of query heads, number of key/value heads, width of a head."""

    query: int
    key: int
    dim: int


def heads_of(c: Config) -> Heads:
    """Heads of a configuration with the usual keys."""
    query = c.count("num_attention_heads")
    key = c.count("num_key_value_heads", query)
    if query % key:
        raise SpecError(f"num_attention_heads = {query} is not a multiple of num_key_value_heads = {key}")
    if c.get("head_dim") is None and c.count("hidden_size") % query:
        raise SpecError(f"hidden_size = {c.count('hidden_size')} is not a multiple of num_attention_heads = {query}")
    return Heads(query, key, c.count("head_dim", c.count("hidden_size") // query or 1))
