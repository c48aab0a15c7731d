"""Mamba 2, Falcon-H1, Granite 4 and Nemotron-H: state spaces, alone or with attention (transformers 5.23)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.mamba import Mixer, gated_norm, mixer
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_spec import Config

PACKAGES = "mamba-ssm and causal-conv1d"

# -- Mamba 2 -----------------------------------------------------------------------------------------------------------


def mamba2_sizes(c: Config) -> Mixer:
    """The mixer of a Mamba 2."""
    return Mixer(
        c.count("num_heads", 128),
        c.count("head_dim", 64),
        c.count("n_groups", 8),
        c.count("state_size", 128),
        c.count("conv_kernel", 4),
        c.count("chunk_size", 256),
        c.text("hidden_act", "silu"),
        c.flag("use_bias", False),
        c.flag("use_bias", False),
        c.flag("use_conv_bias", True),
    )


def mamba2(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, mixer, add; the residual stream may be fp32."""
    residual = x
    x = net.rms_norm("norm", ops.to(x, net.training.dtype))
    if c.flag("residual_in_fp32", True):
        residual = ops.to(residual, "fp32")
    x = mixer(net, "mixer", x, ctx, mamba2_sizes(c), gated_norm)
    return ops.add(residual, x, "residual stream")


def mamba2_embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """``backbone.embeddings(input_ids)``."""
    return net.embedding("backbone.embeddings", ids, c.count("vocab_size"), c.count("hidden_size"))


def cast_for_head(net: Modules, c: Config, x: Tensor) -> Tensor:
    """``hidden_states.to(self.lm_head.weight.dtype)``."""
    return ops.to(x, net.training.dtype)


def wide_logits(net: Modules, c: Config, x: Tensor) -> Tensor:
    """``lm_head(...).float()``."""
    return ops.to(x, "fp32", "logits in fp32")


def recurrent_kinds(c: Config) -> list[LayerKind]:
    """No layer attends."""
    return [LayerKind(recurrent=True)] * c.count("num_hidden_layers")


ARCHITECTURES = {
    "mamba2": Architecture(
        decoder=Decoder(
            mamba2,
            embed=mamba2_embed,
            norm_name="backbone.norm_f",
            rotary=lambda c: None,
            before_head=cast_for_head,
            after_head=wide_logits,
        ),
        stacks=one_stack(recurrent_kinds),
        mixer_packages=PACKAGES,
        attention=("eager",),
    ),
}
