"""What a family is: the functions its model is made of. One row of data and one short function each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vramplan.analytic.architectures.encoder import ForwardSpec
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_spec import Config


class Shape(NamedTuple):
    """The few numbers that anything outside the blocks asks for."""

    layers: int
    hidden: int
    vocabulary: int
    positions: int | None
    """Longest sequence the model was made for."""
    hard_limit: bool = False
    """Whether positions are a table, so that a longer sequence cannot run at all."""


class Rotary(NamedTuple):
    """Rotary tables: how wide, in which dtype, and whether sliding layers have their own."""

    dim: int
    fp32: bool = False
    per_kind: bool = False
    per_row: bool = False
    """Positions of their own for each sample, as images in them make."""


Layer = Callable[[Modules, Config, Tensor, Context, LayerKind], "Tensor | tuple[Tensor, ...]"]
"""Returns the hidden state; BLOOM, Falcon and GPT-J also their attention weights, which the model's loop holds."""
Part = Callable[[Modules, Config, Tensor], Tensor]
NormFunction = Callable[[Modules, str, Tensor], Tensor]


def hub_shape(c: Config) -> Shape:
    """Shape by the keys that most configurations use."""
    return Shape(
        c.count("num_hidden_layers"),
        c.count("hidden_size"),
        c.count("vocab_size"),
        c.get("max_position_embeddings"),
    )


def all_full(c: Config) -> list[LayerKind]:
    """Every layer attends to everything."""
    return [LayerKind()] * c.count("num_hidden_layers")


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


def _not_asked(*_: object) -> Tensor:
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture, described once."""

    layer: Layer
    embed: Part = embed_tokens
    norm: NormFunction | None = rms_norm
    """The final norm."""
    norm_name: str = "model.norm"
    tied: bool = False
    """Whether the head shares the embedding's weight where the configuration does not say."""
    head_bias: bool = False
    before_head: Part = unchanged
    after_head: Part = unchanged
    shape: Callable[[Config], Shape] = hub_shape
    kinds: Callable[[Config], list[LayerKind]] = all_full
    window: Callable[[Config], int | None] = lambda c: None
    rotary: Callable[[Config], Rotary | None] = full_rotary
    attention: tuple[str, ...] = ("sdpa", "flash", "eager")
    """Attention implementations that transformers offers for it; the first is what it runs by default."""
    attention_dropout: tuple[str, float] = ("attention_dropout", 0.0)
    """Key of the dropout on attention probabilities, and transformers' default."""
    buffers: Callable[[Config], tuple[tuple[int, ...], ...]] = lambda c: ()
    """fp32 tables that every layer brings besides its weights."""
    always_masked: bool = False
    """Whether SDPA gets a mask even where none is needed (falcon)."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """transformers' own values of keys that decide memory, where a configuration leaves them out."""
    refuses: tuple[tuple[str, object], ...] = ()
    """Configuration values whose variant of the architecture is not described."""
    leaf: bool = False
    """Whether DeepSpeed takes a mixture, router and all, for one module (0.19, zero/leaf_module_config.py)."""
    remote_code: bool = False
    """Whether the published model brings its own code, which may keep more than this description of it."""
    model: ForwardSpec | None = None
    """All of it in one function, for what is no causal language model; `layer`, `embed` and the like are not asked."""

    @classmethod
    def of_model(
        cls,
        model: ForwardSpec,
        shape: Callable[[Config], Shape],
        attention: tuple[str, ...] = ("sdpa", "flash", "eager"),
        refuses: tuple[tuple[str, object], ...] = (),
    ) -> Family:
        """A model that is no causal language model."""
        return cls(
            _not_asked,
            shape=shape,
            kinds=lambda c: [],
            rotary=lambda c: None,
            attention=attention,
            refuses=refuses,
            model=model,
        )

    def is_tied(self, c: Config) -> bool:
        """Whether head and embedding are one weight."""
        return c.flag("tie_word_embeddings", self.tied)
