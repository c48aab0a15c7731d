"""What a layer is called with besides its input: its kind, and the tables, masks and cache that all layers share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.errors import SpecError
from vramplan.inputs.model_spec import Config


class LayerKind(NamedTuple):
    """What sets a layer apart from its neighbours."""

    sliding: bool = False
    rotary: bool = True
    crosses: bool = False
    """Whether it attends to images and not to the text (Llama 3.2 Vision); skipped where there are none."""
    dense: bool = False
    """Whether one feed-forward takes all tokens, among layers that are mixtures of experts."""


class CrossAttentionInput(NamedTuple):
    """Images as cross-attention sees them."""

    states: Tensor
    """(tiles of the batch, keys of a tile, width)."""
    mask: Tensor
    """(batch, 1, length, keys of a sample), additive."""
    rows: Tensor
    """(batch, length, 1): 0 for tokens in front of the first image."""


@dataclass(slots=True)
class Context:
    """What all layers share in one forward."""

    attention: str
    """eager, sdpa or flash."""
    flash_fits: bool
    """Whether SDPA may choose its flash kernel on this card at all (compute capability 8.0)."""
    cos: dict[bool, Tensor] = field(default_factory=dict)
    """Cosine table by whether the layer is sliding (most models share one)."""
    sin: dict[bool, Tensor] = field(default_factory=dict)
    masks: dict[bool, Tensor | None] = field(default_factory=dict)
    """Attention mask by whether the layer is sliding; None where none is built."""
    positions: Tensor | None = None
    padded: bool = False
    attention_dropout: float = 0.0
    cache: list[Tensor] | None = None
    """Keys and values of all layers, where the model fills a cache (DynamicCache.update joins them to nothing)."""
    crossing: CrossAttentionInput | None = None
    """Images, where layers attend to them; every layer is handed them."""

    def of(self, kind: LayerKind) -> Context:
        """What a layer of `kind` is handed: a checkpointed one keeps its own mask and tables alive, not the others'."""
        own = (kind.sliding,)
        return replace(
            self,
            cos={key: one for key, one in self.cos.items() if key in own},
            sin={key: one for key, one in self.sin.items() if key in own},
            masks={key: one for key, one in self.masks.items() if key in own},
        )

    def on(self, card: int) -> Context:
        """The same on a layer's card: every layer is handed copies of its own of what lies elsewhere (accelerate)."""

        def moved(one: Tensor | None) -> Tensor | None:
            return None if one is None else ops.move(one, card)

        return replace(
            self,
            cos={key: ops.move(one, card) for key, one in self.cos.items()},
            sin={key: ops.move(one, card) for key, one in self.sin.items()},
            masks={key: moved(one) for key, one in self.masks.items()},
            positions=moved(self.positions),
        )


class Heads(NamedTuple):
    """Query heads, key/value heads, width of each."""

    query: int
    key: int
    dim: int


def heads_of(c: Config) -> Heads:
    """Heads by the names most configurations use."""
    query = c.count("num_attention_heads")
    key = c.count("num_key_value_heads", query)
    if query % key:
        raise SpecError(f"num_attention_heads = {query} is no multiple of num_key_value_heads = {key}")
    if c.get("head_dim") is None and c.count("hidden_size") % query:
        raise SpecError(f"hidden_size = {c.count('hidden_size')} is no multiple of num_attention_heads = {query}")
    return Heads(query, key, c.count("head_dim", c.count("hidden_size") // query or 1))
