"""Layers with weights: parameters by name, adapters where the job puts them, on one tape.

A family's forward (:mod:`vramplan.analytic.families`) calls these by the names that transformers gives its modules.
The first call of a name declares the parameter, so that one description yields counts, gradients, states and traffic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from vramplan.analytic import ops, stacks
from vramplan.analytic.ops.products import FOUR_BIT_BLOCK
from vramplan.analytic.tape import Parameter, Resident, Stored, Tape, Tensor, leaf
from vramplan.units import ceil_div


@dataclass(frozen=True, slots=True)
class Training:
    """What of a job decides which weights exist, in which dtype, and which of them train."""

    dtype: str = "bf16"
    """Stored dtype of the model's own weights."""
    full: bool = True
    """Whether the model's own weights train."""
    lora_rank: int = 0
    lora_targets: tuple[str, ...] | None = None
    """Module names that get an adapter; None is every linear layer but the output head."""
    lora_dropout: float = 0.0
    adapter_dtype: str = "fp32"
    adapter_input: str | None = None
    """Dtype that PEFT casts an adapter's input to, where that is not the one it is computed in (FSDP1: the adapter is
    not gathered yet)."""
    quantize: str = "none"
    """How frozen linear layers are stored: none, nf4, or nf4-double, whose scales are quantized as well."""
    input_needs_grad: bool = False
    """transformers' enable_input_require_grads: the embedding's output is made a leaf that needs a gradient."""
    stacks: str = ""
    """Pattern by which PEFT adapts weights of all experts in one (:mod:`vramplan.analytic.stacks`)."""


BLOCK_OF_BLOCKS = 256
"""Scales that share one (bitsandbytes 0.50, functional.py: quantize_4bit)."""


def four_bits(count: int, quantize: str) -> Stored:
    """What `count` weights in four bits are stored as; no table is shared between layers."""
    scales = ceil_div(count, FOUR_BIT_BLOCK)
    packed = ("", ceil_div(count, 2), f"{count:,} / 2 bytes")
    levels = ("16 levels", 64, "16 fp32")
    if quantize == "nf4":
        return packed, ("scales", 4 * scales, f"{scales} fp32"), levels
    return (
        packed,
        ("scales", scales, f"{scales} int8"),
        ("scales of scales", 4 * ceil_div(scales, BLOCK_OF_BLOCKS), "fp32"),
        ("256 levels of scales", 1024, "256 fp32"),
        levels,
        ("mean of scales", 4, "fp32"),
    )


@dataclass(slots=True)
class Net:
    """The layers of one model on one tape."""

    tape: Tape
    training: Training
    embedded: Parameter | None = None
    """The first embedding's weight, which a tied head shares."""
    held: list[Tensor] = field(default_factory=list)
    """Embeddings that the model's forward keeps as locals to its end, where those are not the first layer's input."""
    outer: list[Tensor] = field(default_factory=list)
    """What the forward around the language model's keeps until that is done."""
    inner: list[Tensor] = field(default_factory=list)
    """What the tower's forward keeps as locals to its end."""
    deep: list[Tensor] = field(default_factory=list)
    """Image features that are added behind the first layers of the language model."""
    features: list[Tensor] = field(default_factory=list)
    """Image features, which the model's outputs hold until the loss is there."""
    cache: list[Tensor] = field(default_factory=list)
    """Keys and values, which they hold as well."""
    widths: dict[str, int] = field(default_factory=dict)
    """Smaller side of each adapted layer, for the check of the rank."""
    routers: set[str] = field(default_factory=set)
    """Modules with a weight like a linear layer's that are none."""

    def resident(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """A buffer, or a part of one: memory that was there before the step."""
        return Tensor(self.tape, Resident(), shape, dtype)

    def parameter(
        self, name: str, *shape: int, adapter: bool = False, frozen: bool = False, quantize: str = "none"
    ) -> Parameter:
        """The weight `name` of the layer being played, declared on first use; `frozen`: it never trains."""
        tape, training = self.tape, self.training
        key = (tape.layer, name)
        known = tape.parameters.get(key)
        if known is None:
            dtype, trains = (training.adapter_dtype, True) if adapter else (training.dtype, training.full)
            stored = four_bits(prod(shape), quantize) if quantize != "none" else ()
            known = tape.parameters[key] = Parameter(tape, name, shape, dtype, trains and not frozen, stored)
        return known

    def linear(self, name: str, x: Tensor, out_features: int, bias: bool = False, cached: bool = True) -> Tensor:
        """``nn.Linear``, with a LoRA adapter where the job asks for one (peft/tuners/lora/layer.py, 0.21).

        `cached` False: ``x @ weight.T`` (falcon); autocast does not cache the cast of a view.
        """
        tape, training = self.tape, self.training
        tape.module = name
        in_features = x.shape[-1]
        if training.quantize != "none" and cached:  # a subclass of nn.Linear (falcon's) stays as it is
            return self._quantized(name, x, out_features, bias)
        weight = self.parameter(f"{name}.weight", out_features, in_features)
        shift = self.parameter(f"{name}.bias", out_features) if bias else None
        if self.is_target(name):
            return self._adapted(name, x, ops.linear(x, weight, shift, cached=cached))
        return ops.linear(x, weight, shift, cached=cached)

    def _quantized(self, name: str, x: Tensor, out_features: int, bias: bool) -> Tensor:
        """Bitsandbytes' Linear4bit, with its adapter (peft/tuners/lora/bnb.py, 0.21)."""
        tape, training = self.tape, self.training
        weight = self.parameter(f"{name}.weight", out_features, x.shape[-1], quantize=training.quantize)
        shift = self.parameter(f"{name}.bias", out_features) if bias else None
        out = ops.linear_4bit(x, weight, shift, training.quantize == "nf4-double")
        if not self.is_target(name):
            return out
        out = ops.copy(out, "base output, cloned")
        down, up = self._adapter(name, x.shape[-1], out_features)
        given = x if tape.autocast else ops.to(x, down.dtype, "input cast to the adapter's dtype")
        delta = ops.linear(ops.dropout(given, training.lora_dropout), down, None, "lora_A output")
        delta = ops.scale(ops.linear(delta, up, None, "lora_B output"), "scaled lora_B output")
        delta = ops.to(delta, out.dtype, "scaled lora_B output")
        return ops.add(out, delta, "output with adapter")

    def _adapter(self, name: str, in_features: int, out_features: int) -> tuple[Parameter, Parameter]:
        """The two matrices of a layer's adapter."""
        self.widths[name.rpartition(".")[2]] = min(in_features, out_features)
        rank = self.training.lora_rank
        down = self.parameter(f"{name}.lora_A.weight", rank, in_features, adapter=True)
        return down, self.parameter(f"{name}.lora_B.weight", out_features, rank, adapter=True)

    def _adapted(self, name: str, x: Tensor, out: Tensor) -> Tensor:
        """A layer's output with its adapter's added: ``out + lora_B(lora_A(dropout(x))) * scaling``."""
        training = self.training
        result_dtype = out.dtype
        down, up = self._adapter(name, x.shape[-1], out.shape[-1])
        given = ops.to(
            x, training.adapter_input or down.dtype, "input cast to the adapter's dtype"
        )  # as `x` itself lives
        cast = ops.to(given, down.dtype, "input cast to the adapter's dtype")
        delta = ops.scale(
            ops.linear(
                ops.linear(ops.dropout(cast, training.lora_dropout), down, None, "lora_A output"),
                up,
                None,
                "lora_B output",
            ),
            "scaled lora_B output",
        )
        total = ops.add(out, delta, "output with adapter")
        del delta, out
        return ops.to(total, result_dtype, "output with adapter")

    def head(self, x: Tensor, vocabulary: int, tied: bool, bias: bool = False) -> Tensor:
        """The output head; a tied one uses the embedding's weight, whatever that is called."""
        self.tape.module = "lm_head"
        weight = self.head_weight(vocabulary, x.shape[-1], tied)
        shift = self.parameter("lm_head.bias", vocabulary) if bias else None
        if self.training.lora_targets is not None and self.is_target("lm_head"):
            return self._adapted("lm_head", x, ops.linear(x, weight, shift, "logits", "logits"))
        return ops.linear(x, weight, shift, "logits", "logits")

    def head_weight(self, vocabulary: int, width: int, tied: bool) -> Parameter:
        """The output head's weight alone, for losses that multiply by it themselves."""
        weight = self.embedded if tied else self.parameter("lm_head.weight", vocabulary, width)
        assert weight is not None
        return weight

    def is_target(self, name: str) -> bool:
        """Whether the layer `name` gets an adapter."""
        targets = self.training.lora_targets
        if not self.training.lora_rank or stacks.meant(self.training.stacks, name):
            return False
        return targets is None or any(name == target or name.endswith(f".{target}") for target in targets)

    def rms_norm(self, name: str, x: Tensor, offset: bool = False, cast_last: bool = False) -> Tensor:
        """RMS norm as transformers writes it: fp32 inside, cast back before the weight (llama) or after it.

        `offset` multiplies by ``1 + weight.float()`` (gemma), `cast_last` by the weight in fp32 (olmo2, glm4 ...).
        """
        tape = self.tape
        tape.module = name
        weight = self.parameter(f"{name}.weight", x.shape[-1])
        dtype, given = x.dtype, x  # the module's argument lives until it returns
        x = ops.to(given, "fp32")
        x = ops.mul(x, ops.rsqrt(ops.shift(ops.mean(ops.square(x)))), "normalised")
        if offset:
            return ops.to(ops.mul(x, ops.shift(ops.to(weight, "fp32")), "output in fp32"), dtype, "output")
        if cast_last:
            return ops.to(ops.mul(weight, x, "output in fp32"), dtype, "output")
        return ops.mul(weight, ops.to(x, dtype, "normalised"), "output")

    def layer_norm(self, name: str, x: Tensor, bias: bool = True) -> Tensor:
        """``nn.LayerNorm``."""
        self.tape.module = name
        width = x.shape[-1]
        weight = self.parameter(f"{name}.weight", width)
        return ops.layer_norm(x, weight, self.parameter(f"{name}.bias", width) if bias else None)

    def embedding(self, name: str, ids: Tensor, rows: int, width: int, scaled: bool = False) -> Tensor:
        """``nn.Embedding``; under LoRA with checkpointing the token embedding's output is made to need a gradient.

        `scaled`: the module itself multiplies by a number (gemma), so that is what the hook sees.
        """
        self.tape.module = name
        weight = self.parameter(f"{name}.weight", rows, width)
        if self.embedded is None:
            self.embedded = weight
        out = ops.embedding(ids, weight)
        if scaled:
            out = ops.scale(out, "scaled embedding")
        if self.training.input_needs_grad and weight is self.embedded and out.node is None and self.tape.grad_enabled:
            return leaf(out)
        return out
