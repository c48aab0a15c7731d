"""Activation functions and feed-forward layers.

Mirrors transformers 5.23, modeling_llama.py unless another model is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import liger
from vramplan.analytic.layers.modules import Modules
from vramplan.errors import UnknownNameError
from vramplan.inputs.model_spec import Config


def gelu_new(x: Tensor) -> Tensor:
    """NewGELUActivation: seven Python ops, which save five tensors (activations.py)."""
    half = ops.scale(x, "half of x")
    tanh = ops.tanh(ops.scale(ops.add(x, ops.scale(ops.cube(x), "scaled cube")), "scaled sum"))
    shifted = ops.shift(tanh, "1 + tanh")
    del tanh
    return ops.mul(half, shifted, "gelu output")


def quick_gelu(x: Tensor) -> Tensor:
    """QuickGELUActivation: ``input * torch.sigmoid(1.702 * input)``."""
    return ops.mul(x, ops.sigmoid(ops.scale(x, "scaled input")), "gelu output")


def squared_relu(x: Tensor) -> Tensor:
    """ReLUSquaredActivation: ``torch.square(relu(x))``, in fp32 under autocast."""
    return ops.square(ops.relu(x))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": ops.silu,
    "swish": ops.silu,
    "gelu": ops.gelu,
    "gelu_pytorch_tanh": ops.gelu,
    "gelu_new": gelu_new,
    "quick_gelu": quick_gelu,
    "relu": ops.relu,
    "relu2": squared_relu,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation function with transformers' `name`.

    Raises:
        UnknownNameError: if it is not modelled.
    """
    try:
        return ACTIVATIONS[name]
    except KeyError:
        raise UnknownNameError("activation function", name, ACTIVATIONS) from None


def gated_mlp(net: Modules, c: Config, x: Tensor, act: str = "silu", bias: bool = False) -> Tensor:
    """``down(act(gate(x)) * up(x))`` of the module `mlp`, `intermediate_size` wide."""
    return gated(net, "mlp", x, c.count("intermediate_size"), act, bias)


def gated(
    net: Modules, name: str, x: Tensor, width: int, act: str, bias: bool = False, names: Sequence[str] = ()
) -> Tensor:
    """``down(act(gate(x)) * up(x))`` of the module `name`, `width` wide; `names` of gate, up and down if unusual."""
    first, second, third = names or ("gate_proj", "up_proj", "down_proj")
    if net.fuses_mlp:
        gate = net.linear(f"{name}.{first}", x, width, bias)
        product = liger.gated_product(gate, net.linear(f"{name}.{second}", x, width, bias))
        del gate
    else:  # Python frees the left factor first
        product = ops.mul(
            activation(act)(net.linear(f"{name}.{first}", x, width, bias)),
            net.linear(f"{name}.{second}", x, width, bias),
        )
    return net.linear(f"{name}.{third}", product, x.shape[-1], bias)


def fused_gated_mlp(net: Modules, c: Config, x: Tensor) -> Tensor:
    """``gate, up = gate_up(x).chunk(2); down(up * act(gate))`` (phi3, glm)."""
    width = c.count("intermediate_size")
    gate_up = net.linear("mlp.gate_up_proj", x, 2 * width)
    gate, up = ops.split(gate_up, width, width)
    if net.fuses_mlp:
        product = liger.gated_product(gate, up, slices=True)  # gate and up are locals to the end
    else:
        product = ops.mul(up, activation(c.text("hidden_act", "silu"))(gate))
    return net.linear("mlp.down_proj", product, x.shape[-1])


def plain_mlp(
    net: Modules, x: Tensor, first: str, second: str, width: int, act: str, bias: bool = True, cached: bool = True
) -> Tensor:
    """``second(act(first(x)))``."""
    out = x.shape[-1]
    inner = net.linear(first, x, width, bias, cached)  # `x` is held: the module's argument
    inner = activation(act)(inner)
    return net.linear(second, inner, out, bias, cached)
