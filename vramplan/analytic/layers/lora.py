"""PEFT's LoRA and DoRA on dense and on quantized layers (peft 0.21)."""

from __future__ import annotations

from typing import NamedTuple

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Parameter, Tensor

CAST = "input cast to the adapter's dtype"


class Adapter(NamedTuple):
    """The adapter of one layer, with that layer's weight and bias."""

    down: Parameter
    up: Parameter
    magnitude: Parameter | None
    """DoRA's magnitude vector: the norm of each row of the weight."""
    dropout: float
    weight: Parameter
    bias: Parameter | None
    input_dtype: str | None = None
    """Dtype that PEFT casts the input to, if the adapter computes in another one (FSDP1: it is not gathered yet)."""


def dense(x: Tensor, out: Tensor, adapter: Adapter) -> Tensor:
    """``out + lora_B(lora_A(dropout(x))) * scaling`` in the adapter's dtype (tuners/lora/layer.py)."""
    dtype = out.dtype
    # `x` and the cast are held until the function returns, `out` is not; a recomputation that ends in here frees the
    # cast before `out`
    x = ops.to(x, adapter.input_dtype or adapter.down.dtype, CAST)
    if adapter.magnitude is not None:
        total = ops.add(out, directed(x, out, adapter, adapter.magnitude), "output with adapter")
    else:
        total = ops.add(out, low_rank(x, adapter, adapter.down.dtype), "output with adapter")
    del out
    total = ops.to(total, dtype, "output with adapter")  # frees the sum, before the casts
    del x
    return total


def quantized(x: Tensor, out: Tensor, adapter: Adapter) -> Tensor:
    """LoRA on bitsandbytes' layers: the output of a four-bit layer is cloned; without autocast there are casts.

    The adapter's output is cast, not the sum (tuners/lora/bnb.py).
    """
    if adapter.weight.quantize != "int8":
        out = ops.copy(out, "base output, cloned")
    dtype, casts = out.dtype, x.tape.autocast is None
    x = ops.to(x, adapter.down.dtype, CAST) if casts else x
    if adapter.magnitude is not None:
        total = ops.add(out, directed(x, out, adapter, adapter.magnitude), "output with adapter")
        return ops.to(total, dtype, "output with adapter") if casts else total
    delta = low_rank(x, adapter)
    if casts:
        delta = ops.to(delta, dtype, "scaled lora_B output")
    return ops.add(out, delta, "output with adapter")


def low_rank(x: Tensor, adapter: Adapter, dtype: str | None = None) -> Tensor:
    """``lora_B(lora_A(dropout(x))) * scaling``; FSDP 1 casts what `lora_A` takes to `dtype`, and drops that again."""
    down = ops.linear(
        ops.to(ops.dropout(x, adapter.dropout), dtype or x.dtype, CAST), adapter.down, None, "lora_A output"
    )
    return ops.scale(ops.linear(down, adapter.up, None, "lora_B output"), "scaled lora_B output")


def directed(x: Tensor, out: Tensor, adapter: Adapter, magnitude: Parameter) -> Tensor:
    """DoRA's addition: the full weight is computed for the norms of its rows (tuners/lora/dora.py: DoraLinearLayer).

    With dropout the base output is computed again from the dropped input (variants.py: DoraLinearVariant).
    """
    tape = x.tape
    drops = adapter.dropout > 0 and tape.training
    if drops:
        x = ops.dropout(x, adapter.dropout)
    delta = ops.to(_product_of_matrices(adapter), x.dtype, "lora_B x lora_A")
    weight = ops.to(ops.dequantized(adapter.weight), x.dtype, "weight in the input's dtype")
    lengths = _lengths(weight, delta)
    ratio = ops.mul(magnitude, lengths, "magnitudes over lengths").view(1, magnitude.shape[0])
    low = ops.linear(ops.linear(x, adapter.down, None, "lora_A output"), adapter.up, None, "lora_B output")
    if drops:
        out = ops.linear(x, weight, None, "base output of the dropped input", cached=False)
    elif adapter.bias is not None:
        out = ops.add(out, adapter.bias, "base output without bias")
    return ops.add(  # both summands are freed at once, before the weights
        ops.mul(ops.shift(ratio), out, "base output by its new length"),
        ops.scale(ops.mul(ratio, low, "lora_B output by its length")),
        "DoRA's output",
    )


def _product_of_matrices(adapter: Adapter) -> Tensor:
    """``lora_B(lora_A(identity)).T``, which saves the identity; it needs no gradient."""
    down = adapter.down
    width = down.shape[1]
    identity = down.tape.empty((width, width), down.dtype, "identity", "activation")
    product = ops.linear(
        ops.linear(identity, down, None, "lora_A of the identity"), adapter.up, None, "lora_B x lora_A"
    )
    return product.view(*reversed(product.shape))


def _lengths(weight: Tensor, delta: Tensor) -> Tensor:
    """``linalg.norm(weight + scaling * delta, dim=1)``, detached."""
    scaled = ops.scale(delta.detach(), "scaled lora_B x lora_A")
    total = ops.add(weight, scaled, "whole weight")
    del scaled
    return weight.tape.empty((weight.shape[0],), weight.dtype, "lengths of rows")
