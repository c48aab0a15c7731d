"""torchtune's DoRA (0.6.1, modules/peft/dora.py: DoRALinear)."""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Parameter, Tensor
from vramplan.analytic.layers.lora import Adapter


def directed(x: Tensor, out: Tensor, adapter: Adapter) -> Tensor:
    """The base output, and what the adapter adds to it: all names of the forward live until it returns."""
    tape, down, magnitude = x.tape, adapter.down, adapter.magnitude
    assert magnitude is not None
    x = ops.dropout(x, adapter.dropout)
    low = ops.linear(ops.linear(x, down, None, "lora_A output"), adapter.up, None, "lora_B output")
    width = down.shape[1]
    identity = tape.empty((width, width), x.dtype, "identity", "activation")
    inner = ops.linear(identity, down, None, "lora_A of the identity")
    product = ops.linear(inner, adapter.up, None, "lora_B x lora_A")
    del inner
    weight = _dense(adapter.weight)
    lengths = _lengths(weight, product)
    ratio = ops.divide(magnitude, lengths, "magnitudes over lengths").view(1, magnitude.shape[0])
    base = ops.mul(ops.shift(ratio), out, "base output by its new length")
    change = ops.add(base, ops.scale(ops.mul(ratio, low, "lora_B output by its length")), "DoRA's output")
    del base
    total = ops.add(change, out, "output with adapter")
    del change, low, identity, product, weight, lengths, ratio, x
    return total


def _dense(weight: Parameter) -> Tensor:
    """``self.weight.to(x.dtype)``: a copy of a quantized one."""
    return weight.detach() if weight.quantize == "none" else ops.unpacked_by_torchao(weight)


def _lengths(weight: Tensor, product: Tensor) -> Tensor:
    """``_get_weight_norm``."""
    tape, shape = weight.tape, weight.shape
    scaled = tape.empty(shape, weight.dtype, "scaled lora_B x lora_A", "temporary")
    tape.work(0, 2 * scaled.num_bytes, weight.dtype)
    whole = tape.empty(shape, weight.dtype, "whole weight", "temporary")
    tape.work(0, 4 * scaled.num_bytes, weight.dtype, launches=2)
    del scaled, product
    return tape.empty((shape[0],), whole.dtype, "lengths of rows")
