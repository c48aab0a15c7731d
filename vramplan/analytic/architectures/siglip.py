"""SigLIP: every text with every image, a binary loss for each pair (transformers 5.23, modeling_siglip.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, Shape
from vramplan.analytic.architectures.clip import LOADS, TEXT, VISION, embed_text, image_patches, stacks
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.towers.vit import clip_block, table_of
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention_kernels import softmax
from vramplan.analytic.layers.mlp import plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_inputs import Input, grid, interpolates
from vramplan.inputs.model_spec import Config

ACT = "gelu_pytorch_tanh"


def shape(c: Config) -> Shape:
    """The text's width and words; transformers' own if they are left out."""
    text = c.part("text_config")
    layers = text.count("num_hidden_layers", 12) + c.part("vision_config").count("num_hidden_layers", 12)
    return Shape(layers, text.count("hidden_size", 768), text.count("vocab_size", 32000), None)


def contrast(forward: ForwardPass, c: Config) -> ModelOutput:
    """SiglipModel: both towers, normalised, every text with every image."""
    net = forward.net
    image_states, image = vision(forward, c.part("vision_config"))
    text_states, text = texts(forward, c.part("text_config"))
    net.tape.module = "loss"
    images, words = (ops.mul(one, ops.norm(one), "normalised") for one in (image, text))
    samples, width = words.shape
    scores = ops.matmul(words, images, 2 * samples * samples * width, (samples, samples), "similarities")
    net.tape.module = ""
    scores = ops.mul(scores, ops.exp(net.parameter("logit_scale", 1)), "scaled similarities")
    scores = ops.add(scores, net.parameter("logit_bias", 1), "shifted similarities")
    net.tape.module = "loss"
    return ModelOutput(yes_or_no(scores), [scores, scores, words, images, text_states, text, image_states, image])


def yes_or_no(scores: Tensor) -> Tensor:
    """The log-sigmoid of each score, its sign turned if text and image do not belong together."""
    signs = [scores.tape.empty(scores.shape, "fp32", "which pairs belong together") for _ in range(2)]
    likelihoods = ops.log_sigmoid(ops.mul(signs[-1], scores, "signed scores"))
    return ops.total(ops.neg(ops.total(likelihoods)).view(1, scores.shape[0])).view()


def vision(forward: ForwardPass, c: Config) -> tuple[Tensor, Tensor]:
    """SiglipVisionModel: the first layer's input lives to its end; all patches' states pooled by attention."""
    net, name = forward.net, "vision_model.embeddings"
    x = image_patches(forward, c, bias=True)
    width, side = x.shape[2], c.count("image_size", 224) // c.count("patch_size")
    if interpolates(c, forward.job):
        net.tape.module = name
        rows, columns = grid(c, forward.job)
        table = net.parameter(f"{name}.position_embedding.weight", side * side, width).view(1, side * side, width)
        x = ops.add(x, ops.resize(table, (1, rows * columns, width)))
    else:
        x = ops.add(x, table_of(net, f"{name}.position_embedding.weight", side * side, width))
    ctx = forward.context(None, c.number("attention_dropout", 0.0))
    act = c.text("hidden_act", ACT)
    hidden = forward.layers(VISION, x, lambda x: clip_block(net, c, x, ctx, act))
    hidden = net.layer_norm("vision_model.post_layernorm", hidden)
    return hidden, pooled(net, c, hidden)


def texts(forward: ForwardPass, c: Config) -> tuple[Tensor, Tensor]:
    """SiglipTextModel: every word attends to every other; the last word's state goes through one layer."""
    net = forward.net
    x = embed_text(forward, c, 32000, 64)
    ctx = forward.context(None, c.number("attention_dropout", 0.0))
    act = c.text("hidden_act", ACT)
    hidden = forward.layers(TEXT, x, lambda x: clip_block(net, c, x, ctx, act))
    hidden = net.layer_norm("text_model.final_layer_norm", hidden)
    last = ops.rows(hidden, 1).view(hidden.shape[0], hidden.shape[2])
    size = c.count("projection_size", hidden.shape[2])
    return hidden, net.linear("text_model.head", last, size, True)


def pooled(net: Modules, c: Config, x: Tensor, name: str = "vision_model.head") -> Tensor:
    """SiglipMultiheadAttentionPoolingHead: one learned query attends to all patches; norm, feed-forward, add."""
    samples, _, width = x.shape
    net.tape.module = name
    probe = ops.repeat(net.parameter(f"{name}.probe", 1, 1, width), (samples, 1, width))
    x = asked(net, c, probe, x, name)
    residual = x
    x = net.layer_norm(f"{name}.layernorm", x)
    inner, act = c.count("intermediate_size"), c.text("hidden_act", ACT)
    x = ops.add(residual, plain_mlp(net, x, f"{name}.mlp.fc1", f"{name}.mlp.fc2", inner, act))
    return ops.rows(x, 1).view(samples, width)


def asked(net: Modules, c: Config, query: Tensor, x: Tensor, head: str) -> Tensor:
    """``nn.MultiheadAttention(query, x, x)``, batch first and its weights returned: no fused kernel.

    (torch/nn/functional.py: multi_head_attention_forward, _in_projection_packed.) It takes the last layer's weight
    itself, so that an adapter on that is never called.
    """
    name, heads = f"{head}.attention", c.count("num_attention_heads")
    samples, length, width = x.shape
    net.tape.module = name
    weights = ops.split_first(net.parameter(f"{name}.in_proj_weight", 3 * width, width), (width, 2 * width))
    biases = ops.split_first(net.parameter(f"{name}.in_proj_bias", 3 * width), (width, 2 * width))
    q = ops.linear(query.view(1, samples, width), weights[0], biases[0])
    both = ops.joint_projection(x, weights[1], biases[1])
    del weights, biases
    k, v = (ops.sliced(both, (1, length, samples, width)) for _ in range(2))
    k = k.view(length, samples, heads, width // heads)
    v = ops.heads_first(v.view(length, samples, heads, width // heads))
    q = ops.scale(q, "scaled query")
    flops, shape = 2 * samples * length * width, (samples, heads, 1, length)
    scores = softmax(ops.matmul(q, k, flops, shape, "attention scores"))
    out = ops.matmul(scores, v, flops, (samples, heads, 1, width // heads), "attention output")
    last = f"{name}.out_proj"
    if net.is_target(last):
        net.parameter(f"{last}.lora_A.weight", net.training.lora_rank, width, adapter=True)
        net.parameter(f"{last}.lora_B.weight", width, net.training.lora_rank, adapter=True)
    weight = net.parameter(f"{last}.weight", width, width)
    return ops.linear(out.view(samples, width), weight, net.parameter(f"{last}.bias", width)).view(samples, 1, width)


def tables(c: Config) -> list[Input]:
    """Positions of both."""
    image, text = c.part("vision_config"), c.part("text_config")
    side = image.count("image_size", 224) // image.count("patch_size")
    return [
        Input("position_ids of patches", (1, side * side)),
        Input("position_ids", (1, text.count("max_position_embeddings", 64))),
    ]


ARCHITECTURES = {
    "siglip": Architecture(
        contrast, stacks=stacks, shape=shape, buffers=tables, loads=LOADS, dora_stops="SigLIP's pooling head"
    )
}
