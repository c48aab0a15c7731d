"""The record of an architecture: everything that the analytic estimator knows about one ``model_type``.

What an architecture is trained on, and the tokens and patches of an image, stand in
:mod:`vramplan.inputs.model_inputs`, :mod:`vramplan.inputs.images` and, for experts before transformers 5,
:mod:`vramplan.inputs.validation`: a trace needs these facts too. Both are joined by ``model_type``, in
:func:`vramplan.analytic.architectures.lookup.architecture_of` and :func:`vramplan.analytic.estimator.lay_out`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from vramplan.analytic.architectures.causal_lm import causal_lm
from vramplan.analytic.architectures.decoder import Decoder
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.heads import SCORE, Heads
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.context import LayerKind
from vramplan.dataclass import dataclass
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config


class Shape(NamedTuple):
    """The sizes of a model that code outside of the architectures needs."""

    layers: int
    hidden: int
    vocabulary: int
    positions: int | None
    """Longest sequence the model was made for."""
    hard_limit: bool = False
    """Whether positions are a table, so that a longer sequence cannot run at all."""


Stacks = list[list[Hashable]]
"""For each stack the kind of each layer: a value that differs between layers that differ."""


def hub_shape(c: Config) -> Shape:
    """Shape by the keys that most configurations use."""
    return Shape(
        c.count("num_hidden_layers"),
        c.count("hidden_size"),
        c.count("vocab_size"),
        c.get("max_position_embeddings"),
    )


def alike(*counts: int) -> Stacks:
    """Stacks of layers that are all the same."""
    return [[None] * count for count in counts]


def one_stack(kinds: Callable[[Config], Sequence[Hashable]]) -> Callable[[Config], Stacks]:
    """The only stack of a model, from a function of its layers."""
    return lambda c: [list(kinds(c))]


def full_attention(c: Config) -> Stacks:
    """One stack in which every layer attends to everything."""
    return [[LayerKind()] * c.count("num_hidden_layers")]


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture: its forward, the sizes it reads from a configuration, and what it does not support."""

    forward: Callable[[ForwardPass, Config], ModelOutput] = causal_lm
    encode: Callable[[ForwardPass, Config], Tensor] | None = None
    """The last hidden states, without a head, where `forward` is the architecture's own."""
    pooler: Callable[[ForwardPass, Tensor], Tensor] | None = None
    """What the model without a head makes of the last states beside them, which embeddings leave unused."""
    heads: Heads = SCORE
    """Heads that classify, of the classes that transformers has for the architecture."""
    decoder: Decoder | None = None
    """The parts of a causal language model; None if `forward` is the architecture's own."""
    stacks: Callable[[Config], Stacks] = full_attention
    shape: Callable[[Config], Shape] = hub_shape
    tied: bool = False
    """Whether the head shares the embedding's weight if the configuration has no ``tie_word_embeddings``."""
    buffers: Callable[[Config], list[Input]] = lambda c: []
    """Tables that are loaded with the weights, in the model's dtype if they name none; those of rotary embeddings
    follow from the decoder."""
    loads: tuple[str | int, ...] = ()
    """Beginnings of the names of weights and numbers of stacks, in the order that transformers' class makes them, if
    that is not embeddings, layers, the rest: blocks of weights lie beside each other in that order."""
    attention: tuple[str, ...] = ("sdpa", "flash", "eager")
    """Attention implementations that transformers offers for it; the first is what it runs by default."""
    checkpoints: bool = True
    """Whether transformers recomputes its layers in backward."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """transformers' own values of keys that decide memory, for configurations that leave them out."""
    refuses: tuple[tuple[str, object], ...] = ()
    """Configuration keys and values whose variant of the architecture is not supported; ``...`` is any true value."""
    remote_code: bool = False
    """Whether the published model brings its own code, which may keep more than this description of it."""
    deepspeed_leaf: bool = False
    """Whether DeepSpeed takes a mixture of experts (MoE), router and all, for one module (0.19,
    zero/leaf_module_config.py)."""
    peft_experts: str = ""
    """The pattern by which PEFT adapts stacked experts (:mod:`vramplan.analytic.layers.moe_peft`): by the type of the
    whole model (transformers 5.23, conversion_mapping.py: _MODEL_TO_CONVERSION_PATTERN, which has no qwen2_moe; PEFT
    adds mixtral)."""
    mixer_packages: str = ""
    """Packages whose kernels transformers takes for layers without attention if they are installed; empty if it has no
    such layers."""
    fused_projection: str = ""
    """The linear layer whose own weight these kernels multiply by: an adapter on it does nothing, and a quantized
    weight does not run."""
    unadapted: tuple[str, ...] = ()
    """Modules that PEFT refuses to adapt (0.21, tuners_utils.py: _check_lora_target_modules_mamba)."""
    clamps_fp16: bool = False
    """Whether its layers clamp fp16 values, which is not modelled."""
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Settings of a job of which some values alone are modelled, the usual one first."""
    hook_stops: str = ""
    """Why adapters do not train with gradient checkpointing, whose hook makes embeddings leaves."""
    zero3_stops: str = ""
    """Why the model does not load under ZeRO-3."""
    dora_stops: str = ""
    """Why DoRA is not modelled."""

    def is_tied(self, c: Config) -> bool:
        """Whether head and embedding are one weight."""
        return c.flag("tie_word_embeddings", self.tied)
